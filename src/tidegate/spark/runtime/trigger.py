"""When a streaming query starts its micro-batches. Does not import Spark, so that declarations do not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.model.errors import InvalidArgumentError

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter


@dataclass(frozen=True, slots=True)
class Trigger:
    """When Spark starts a micro-batch. Set at most one field; none: as soon as the previous one ends."""

    is_available_now: bool = False
    """True: process what is available at the start, then end."""
    interval: str | None = None
    """Such as ``"5 seconds"``."""

    def __post_init__(self) -> None:
        if self.is_available_now and self.interval is not None:
            raise InvalidArgumentError(
                "A trigger is either available-now or has an interval.", next_step="Set one of the two."
            )

    def applied_to(self, writer: DataStreamWriter) -> DataStreamWriter:
        """``writer`` with this trigger."""
        if self.is_available_now:
            return writer.trigger(availableNow=True)
        return writer if self.interval is None else writer.trigger(processingTime=self.interval)


AS_SOON_AS_POSSIBLE = Trigger()
"""A micro-batch starts when the previous one is complete and there is something to read."""
