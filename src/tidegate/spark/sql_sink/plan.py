"""What a driver sends to its writing tasks: the pipeline, the database, and the driver's claim."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidegate.processor.policies import FailurePolicy
from tidegate.spark.runtime.pickled import pickled, unpickled
from tidegate.spark.source.offsets import StreamOffset
from tidegate.spark.source.options import SourceOptions
from tidegate.spark.source.ownership import Claim, checkpoint_positions, note_histories
from tidegate.sql import Database, Pipeline
from tidegate.sql.commit.batch import commit_batches
from tidegate.sql.commit.engine import BatchScope
from tidegate.sql.commit.partition_batch import computed_batch
from tidegate.sql.core.values import EventPlace


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """Everything that a writing task needs to know."""

    pipeline: Pipeline
    database_url: str = field(repr=False)
    source: SourceOptions
    """Of the stream that feeds the sink: events are read again by pointer for dead letters."""
    claim: Claim
    is_transformed: bool
    """True: rows come from a DataFrame transformation; False: encoded events, or the columns of a batch
    function, for the pipeline's handler."""
    transaction_rows_max: int
    """Rows after which a task commits what it has of a partition, and continues."""
    transaction_bytes_max: int
    may_filter: bool = False
    """True: events that did not come out of the transformation were filtered by it, because it leaves each
    partition's events in the task that reads them."""

    def checkpoints(self) -> dict[str, int]:
        """Hub partition → its next event to process. Raises DatabaseError, EventHubReplacedError."""
        return checkpoint_positions(
            Database.shared(self.database_url),
            self.pipeline.consumer,
            event_hub_created_at_ms=self.claim.event_hub_created_at_ms,
        )

    def pass_filtered(self, reached: Mapping[str, int], end: Mapping[str, int]) -> None:
        """Move the checkpoints behind the last events of a micro-batch, which the transformation filtered.

        Raises DatabaseError, FencedError.
        """
        claim, pipeline = self.claim, self.pipeline
        scopes = [
            BatchScope(
                pipeline.consumer,
                partition_id,
                reached.get(partition_id, 0),
                until,
                claim.event_hub_created_at_ms,
                owner=claim.owner,
                lease_epoch=claim.lease_epoch,
                pipeline_name=pipeline.name,
            )
            for partition_id, until in end.items()
            if reached.get(partition_id, 0) < until
        ]
        if scopes:
            batches = [computed_batch(pipeline.table, scope, (), positions=_no_place) for scope in scopes]
            commit_batches(Database.shared(self.database_url), batches)

    def note_histories(self, offset: StreamOffset) -> None:
        """Keep the histories of a committed micro-batch's end with the checkpoints. Raises DatabaseError."""
        database = Database.shared(self.database_url)
        note_histories(database, self.pipeline.consumer, self.claim, offset)

    def to_text(self) -> str:
        """The plan as one option's value.

        Raises InvalidArgumentError where the handler or the table cannot be pickled.
        """
        return self.pickled(self)

    def pickled(self, value: object) -> str:
        """``value``, which holds this plan, as one option's value. Raises InvalidArgumentError."""
        return pickled(value, self.pipeline.function, subject=f"The pipeline {self.pipeline.name}")


def _no_place(sequence_number: int) -> EventPlace:
    raise AssertionError(f"There is no row of event {sequence_number}.")


def policy_of(pipeline: Pipeline) -> FailurePolicy:
    """What happens to an event for which the handler fails."""
    return pipeline.policy or FailurePolicy()


def load_plan(text: str) -> SinkPlan:
    """The plan again, in a worker; see ``unpickled``."""
    plan = unpickled(text)
    assert isinstance(plan, SinkPlan)
    return plan
