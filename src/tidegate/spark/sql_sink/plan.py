"""What a driver sends to its writing tasks: the pipeline, the database, and the driver's claim."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate.processor.policies import FailurePolicy
from tidegate.spark.runtime.pickled import pickled, unpickled
from tidegate.spark.source.offsets import StreamOffset
from tidegate.spark.source.options import SourceOptions
from tidegate.spark.source.ownership import Claim, checkpoint_positions, note_histories
from tidegate.sql import Database, Pipeline


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

    def checkpoints(self) -> dict[str, int]:
        """Hub partition → its next event to process. Raises DatabaseError, EventHubReplacedError."""
        return checkpoint_positions(
            Database.shared(self.database_url),
            self.pipeline.consumer,
            event_hub_created_at_ms=self.claim.event_hub_created_at_ms,
        )

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


def policy_of(pipeline: Pipeline) -> FailurePolicy:
    """What happens to an event for which the handler fails."""
    return pipeline.policy or FailurePolicy()


def load_plan(text: str) -> SinkPlan:
    """The plan again, in a worker; see ``unpickled``."""
    plan = unpickled(text)
    assert isinstance(plan, SinkPlan)
    return plan
