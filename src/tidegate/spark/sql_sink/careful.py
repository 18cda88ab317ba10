"""Commits a hub partition's events as a host does, once its handler's failure policy has to decide.

The two ways of a writing task:

    fast      rows first, then one transaction of several partitions: while failed events simply become dead
              letters, and neither an outage nor too many of them is seen (``writer``)
    careful   the hosts' own ``SqlTransactions``: retries, stop, parked keys, the probe after an outage, the
              budget of dead letters. A pause is waited for in the task, so that the query continues by itself
"""

from __future__ import annotations

from contextlib import ExitStack

import pyarrow as pa

from tidegate.client.blocking.background import run_blocking
from tidegate.model.events import ReceivedEvent
from tidegate.processor.handlers import PartitionContext
from tidegate.processor.lease import GroupKey, Lease
from tidegate.spark.runtime.patience import patiently
from tidegate.spark.source.hub import HubReader
from tidegate.spark.sql_sink.accounting import sequence_numbers_of
from tidegate.spark.sql_sink.commits import ENCODED_EVENT_COLUMN, received_events
from tidegate.spark.sql_sink.plan import SinkPlan, policy_of
from tidegate.sql import Database
from tidegate.sql.commit.transactions import SqlTransactions
from tidegate.sql.handlers.forms import form_of
from tidegate.sql.handlers.outages import DeadLetterBudget

_budgets: dict[tuple[str, str, str, int | None], DeadLetterBudget] = {}
"""Of this process: a worker lives through many micro-batches."""


def budget_of(plan: SinkPlan, partition_id: str) -> DeadLetterBudget:
    """How many dead letters the partition may still get from this process."""
    per_minute = policy_of(plan.pipeline).dead_letters_per_minute
    key = (plan.database_url, str(plan.pipeline.consumer), partition_id, per_minute)
    return _budgets.setdefault(key, DeadLetterBudget(per_minute))


class CarefulCommits:
    """One task's partitions, each with its transactions. ``close`` it."""

    def __init__(self, plan: SinkPlan, database: Database) -> None:
        self._plan = plan
        self._database = database
        self._stack = ExitStack()
        self._transactions: dict[str, SqlTransactions] = {}

    def commit(
        self, partition_id: str, rows: pa.Table, history_id: str | None, *, is_gap_allowed: bool
    ) -> int:
        """Process a partition's rows, in the order of their sequence numbers; waits while that pauses.

        A batch function's events are read again from the log, unless they came with the rows. Returns how
        many events were done already. Raises PartitionStoppedError (the policy is to stop: the events before
        are committed), and as ``SqlTransactions.process`` and ``HubReader.read_events``.
        """
        numbers = sequence_numbers_of(rows)
        what = f"Processing partition {partition_id}"
        transactions = self._of(partition_id)
        events = patiently(lambda: self._events(partition_id, rows), what)
        outcome = patiently(
            lambda: run_blocking(
                lambda: transactions.process(
                    events,
                    start_sequence_number=int(numbers[0]),
                    until_sequence_number=int(numbers[-1]) + 1,
                    is_gap_allowed=is_gap_allowed,
                    history_id=history_id,
                )
            ),
            what,
        )
        return outcome.skipped

    def close(self) -> None:
        """End the transactions' threads."""
        self._stack.close()

    def _events(self, partition_id: str, rows: pa.Table) -> list[ReceivedEvent]:
        if ENCODED_EVENT_COLUMN in rows.column_names:
            return received_events(partition_id, rows)
        numbers = sequence_numbers_of(rows).tolist()
        return list(HubReader(self._plan.source).read_events(partition_id, numbers))

    def _of(self, partition_id: str) -> SqlTransactions:
        found = self._transactions.get(partition_id)
        if found is None:
            plan, consumer = self._plan, self._plan.pipeline.consumer
            # The claim has the effect of a lease, but nothing renews it.
            now = self._database.clock.now_utc()
            lease = Lease(partition_id, plan.claim.owner, plan.claim.lease_epoch, None, now, "")
            group = GroupKey("spark", consumer.event_hub, consumer.consumer_group)
            found = self._transactions[partition_id] = SqlTransactions(
                self._database,
                consumer,
                lease,
                form_of(plan.pipeline),
                PartitionContext(group, consumer.event_hub, consumer.consumer_group, lease),
                policy=policy_of(plan.pipeline),
                event_hub_created_at_ms=plan.claim.event_hub_created_at_ms,
                budget=budget_of(plan, partition_id),
            )
            self._stack.callback(found.close)
        return found
