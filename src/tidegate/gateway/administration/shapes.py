"""The requests and answers of the administration: they check requests, and make the schemas of the OpenAPI
document.

A request with an unknown field is refused, so that a misspelt setting is not mistaken for one that was left
out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, defstruct

from tidegate.broker import Claim
from tidegate.model.hub_settings import HUB_SETTINGS, PARTITION_COUNT_DEFAULT, HubSetting
from tidegate.model.limits import Tier


class Shape(Struct, forbid_unknown_fields=True):
    """An object. A field that may be left out of a request is ``UNSET`` then, or None."""

    def given(self) -> dict[str, object]:
        """The fields that are set, by name."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not UNSET}


def _says(description: str) -> Meta:
    return Meta(description=description)


def _shape(name: str, required: Mapping[str, Any], optional: Mapping[str, Any]) -> type[Shape]:
    """A shape whose fields are declared elsewhere: their types by name."""
    unset = [(each, kind | UnsetType, UNSET) for each, kind in optional.items()]
    made = defstruct(name, [*required.items(), *unset], bases=(Shape,))
    assert issubclass(made, Shape)
    return made


REFERENCE: Final = "#/components/schemas/"


_POLICIES_USED: Final = (
    "The policy whose key was used (`a, b`: several); empty: the service, or no valid key."
)


class AuditRecord(Shape):
    time: Annotated[str, _says("When: UTC, in ISO 8601.")]
    action: Annotated[str, _says("What was done.")]
    target: Annotated[str, _says("To what: HUB, HUB/policies/NAME; empty is the namespace.")]
    policy: Annotated[str, _says(_POLICIES_USED)]
    scope: Annotated[str, _says("The event hub of that policy; empty is the namespace.")]
    address: Annotated[str, _says("From where; empty where it is not known.")]
    door: Annotated[str, _says("amqp, http, console, or service.")]
    old: Annotated[str | None, _says("What was before, as JSON; null where there was nothing.")]
    new: Annotated[str | None, _says("What is now, as JSON; null where there is nothing.")]


class Named(Shape):
    name: Annotated[str, _says("Its name.")]


class Namespace(Shape):
    tier: Annotated[Tier, _says("The tier of Event Hubs whose limits are kept.")]
    event_bytes_max: Annotated[int, _says("Largest event or batch that the tier allows, in bytes.")]
    partitions_max: Annotated[int, _says("Partitions per event hub that the tier allows.")]
    consumer_groups_max: Annotated[int, _says("Consumer groups per event hub that the tier allows.")]
    retention_hours_max: Annotated[int, _says("Hours of retention that the tier allows.")]
    throughput_units: Annotated[int | None, _says("Throughput units; null means no limit.")]
    throttled_requests: Annotated[int, _says("Batches refused for the units since the service started.")]
    throttled_events: Annotated[int, _says("Events in them.")]
    throttled_bytes: Annotated[int, _says("Bytes in them.")]
    delayed_deliveries: Annotated[int, _says("How often a receiver had to wait for the units.")]


class NamespaceUpdate(Shape):
    tier: Annotated[Tier | UnsetType, _says("The tier whose limits to keep.")] = UNSET
    throughput_units: Annotated[int | UnsetType | None, _says("1 or more; null means no limit.")] = UNSET


class Statistics(Shape):
    incoming_events: Annotated[int, _says("Events stored.")]
    incoming_bytes: Annotated[int, _says("Bytes stored.")]
    outgoing_events: Annotated[int, _says("Events delivered.")]
    outgoing_bytes: Annotated[int, _says("Bytes delivered.")]
    incoming_requests: Annotated[int, _says("Batches offered, refused ones included.")]
    throttled_requests: Annotated[int, _says("Batches refused for the throughput units.")]


_CAPTURE_OPTIONS: Final[Mapping[str, Any]] = {
    "is_enabled": Annotated[bool, _says("False pauses; enabled again, it continues where it stopped.")],
    "size_window_bytes": Annotated[int, _says("Bytes of events after which a file is closed.")],
    "time_window_s": Annotated[int, _says("Seconds after which a file is closed.")],
    "is_empty_skipped": Annotated[bool, _says("Whether a window without events leaves no file.")],
    "name_format": Annotated[str, _says("How files are named; holds each of Event Hubs' fields in braces.")],
}
_DESTINATION: Final[Mapping[str, Any]] = {
    "destination": Annotated[str, _says("A directory of the service's machine, or a URL that fsspec knows.")]
}
Capture: Final = _shape("Capture", {**_DESTINATION, **_CAPTURE_OPTIONS}, {})
CaptureSettings: Final = _shape("CaptureSettings", _DESTINATION, _CAPTURE_OPTIONS)


class CaptureStatistics(Shape):
    captured_files: Annotated[
        int, _says("Files finished since the service started, or the settings changed.")
    ]
    captured_events: Annotated[int, _says("Events in them.")]
    captured_bytes: Annotated[int, _says("Bytes of these events, as stored.")]
    backlog_events: Annotated[int, _says("Events in the log that are in no finished file.")]
    backlog_bytes: Annotated[int, _says("Their bytes, as far as Capture has looked.")]
    missing_events: Annotated[int, _says("Events that retention took before they were captured.")]
    is_failing: Annotated[bool, _says("Whether something keeps it from continuing.")]
    last_error: Annotated[str, _says("What that is, or was last; empty where nothing ever was.")]


def _setting(setting: HubSetting) -> Any:
    """The type of a setting in a description."""
    if setting.is_nullable:
        return Annotated[setting.kind | None, _says(f"{setting.sentence}; null is {setting.default}.")]
    return Annotated[setting.kind, _says(f"{setting.sentence}.")]


def _change(setting: HubSetting) -> Any:
    """The type of a setting in a request."""
    words = f"{setting.sentence}; null is" if setting.is_nullable else "Null is"
    return Annotated[setting.kind | None, _says(f"{words} {setting.default}.")]


_CHANGES: Final = {setting.name: _change(setting) for setting in HUB_SETTINGS}
_COUNT: Final = f"{PARTITION_COUNT_DEFAULT} where it is left out; fixed from then on."

EventHub: Final = _shape(
    "EventHub",
    {
        "name": Annotated[str, _says("As its creator wrote it; compared without regard to case.")],
        "created_at": Annotated[str, _says("When it was created: ISO 8601, UTC.")],
        "partition_ids": Annotated[list[str], _says('"0", "1", … in order.')],
        **{setting.name: _setting(setting) for setting in HUB_SETTINGS},
        "consumer_groups": Annotated[list[str], _says("Their names, $Default first.")],
        "capture": Annotated[Capture | None, _says("Null: not captured.")],
    },
    {},
)
EventHubCreation: Final = _shape(
    "EventHubCreation",
    {"name": Annotated[str, _says("Letters, digits, '.', '-' and '_'.")]},
    {"partition_count": Annotated[int, _says(_COUNT)], **_CHANGES},
)
EventHubUpdate: Final = _shape(
    "EventHubUpdate",
    {},
    {"partition_count": Annotated[int, _says("May only repeat what it is.")], **_CHANGES},
)


class Partition(Shape):
    partition_id: Annotated[str, _says('"0", "1", …')]
    begin_sequence_number: Annotated[int, _says("Of the first event held, or of the next one where none is.")]
    last_enqueued_sequence_number: Annotated[int, _says("-1 where no event ever came.")]
    last_enqueued_offset: Annotated[str, _says('"-1" where no event ever came.')]
    last_enqueued_time: Annotated[str | None, _says("ISO 8601, UTC; null where no event ever came.")]
    is_empty: Annotated[bool, _says("Whether no event is held.")]


_KEY: Final = "Shown only with a Manage claim."


class Policy(Shape):
    name: Annotated[str, _says("Its name; case-sensitive.")]
    claims: Annotated[list[Claim], _says("The rights that its keys give.")]
    primary_key: Annotated[str | UnsetType, _says(_KEY)] = UNSET
    secondary_key: Annotated[str | UnsetType, _says(f"Equivalent to the primary key. {_KEY}")] = UNSET


_MADE: Final = _says("Generated where it is left out or null.")


class PolicyCreation(Shape):
    name: Annotated[str, _says("Letters, digits, '.', '-' and '_'.")]
    claims: Annotated[list[Claim], _says("At least one; Manage includes the others.")]
    primary_key: Annotated[str | None, _MADE] = None
    secondary_key: Annotated[str | None, _MADE] = None


class KeyRegeneration(Shape):
    is_secondary: Annotated[bool, _says("Which key; the primary key if left out.")] = False
    key: Annotated[str | None, _MADE] = None


class ErrorDetail(Shape):
    status: Annotated[int, _says("The HTTP status.")]
    condition: Annotated[str, _says("The AMQP condition that says the same; one word per kind of error.")]
    message: Annotated[str, _says("A sentence, and what to do next.")]


class Error(Shape):
    error: Annotated[ErrorDetail, _says("What is wrong.")]


def schemas() -> dict[str, Any]:
    """The JSON Schema of each shape, by name, in the order above (2020-12, as OpenAPI 3.1 has it)."""
    _, found = msgspec.json.schema_components(Shape.__subclasses__(), ref_template=f"{REFERENCE}{{name}}")
    for kind in (Tier, Claim):  # msgspec sorts their values
        found[kind.__name__]["enum"] = [each.value for each in kind]
    return found
