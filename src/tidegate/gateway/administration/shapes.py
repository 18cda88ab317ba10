"""The requests and answers of the administration, as tables (``json_shapes``)."""

from __future__ import annotations

from typing import Final

from tidegate.broker import Claim
from tidegate.gateway.administration.json_shapes import Field, Kind, Shape
from tidegate.model.hub_settings import HUB_SETTINGS, PARTITION_COUNT_DEFAULT, HubSetting
from tidegate.model.limits import Tier

_TIERS: Final = tuple(tier.value for tier in Tier)
_CLAIMS: Final = tuple(claim.value for claim in Claim)


def _number(name: str, description: str, *, is_nullable: bool = False, is_required: bool = True) -> Field:
    return Field(name, Kind.INTEGER, description, is_required, is_nullable)


def _text(name: str, description: str, *, is_nullable: bool = False, is_required: bool = True) -> Field:
    return Field(name, Kind.TEXT, description, is_required, is_nullable)


NAMED: Final = Shape("Named", (_text("name", "Its name."),))

NAMESPACE: Final = Shape(
    "Namespace",
    (
        Field("tier", Kind.TEXT, "The tier of Event Hubs whose limits are kept.", choices=_TIERS),
        _number("event_bytes_max", "Largest event or batch that the tier allows, in bytes."),
        _number("partitions_max", "Partitions per event hub that the tier allows."),
        _number("consumer_groups_max", "Consumer groups per event hub that the tier allows."),
        _number("retention_hours_max", "Hours of retention that the tier allows."),
        _number("throughput_units", "Throughput units; null means no limit.", is_nullable=True),
        _number("throttled_requests", "Batches refused for the units since the service started."),
        _number("throttled_events", "Events in them."),
        _number("throttled_bytes", "Bytes in them."),
        _number("delayed_deliveries", "How often a receiver had to wait for the units."),
    ),
)

NAMESPACE_UPDATE: Final = Shape(
    "NamespaceUpdate",
    (
        Field("tier", Kind.TEXT, "The tier whose limits to keep.", is_required=False, choices=_TIERS),
        _number("throughput_units", "1 or more; null means no limit.", is_nullable=True, is_required=False),
    ),
)

AUDIT_RECORD: Final = Shape(
    "AuditRecord",
    (
        _text("time", "When: UTC, in ISO 8601."),
        _text("action", "What was done."),
        _text("target", "To what: HUB, HUB/policies/NAME; empty is the namespace."),
        _text(
            "policy",
            "The policy whose key was used (`a, b`: several); empty: the service, or no valid key.",
        ),
        _text("scope", "The event hub of that policy; empty is the namespace."),
        _text("address", "From where; empty where it is not known."),
        _text("door", "amqp, http, console, or service."),
        _text("old", "What was before, as JSON; null where there was nothing.", is_nullable=True),
        _text("new", "What is now, as JSON; null where there is nothing.", is_nullable=True),
    ),
)

STATISTICS: Final = Shape(
    "Statistics",
    (
        _number("incoming_events", "Events stored."),
        _number("incoming_bytes", "Bytes stored."),
        _number("outgoing_events", "Events delivered."),
        _number("outgoing_bytes", "Bytes delivered."),
        _number("incoming_requests", "Batches offered, refused ones included."),
        _number("throttled_requests", "Batches refused for the throughput units."),
    ),
)

_CAPTURE_OPTIONS: Final = (
    (Kind.BOOLEAN, "is_enabled", "False pauses; enabled again, it continues where it stopped."),
    (Kind.INTEGER, "size_window_bytes", "Bytes of events after which a file is closed."),
    (Kind.INTEGER, "time_window_s", "Seconds after which a file is closed."),
    (Kind.BOOLEAN, "is_empty_skipped", "Whether a window without events leaves no file."),
    (Kind.TEXT, "name_format", "How files are named; holds each of Event Hubs' fields in braces."),
)


def _capture(name: str, *, is_answer: bool) -> Shape:
    destination = _text("destination", "A directory of the service's machine, or a URL that fsspec knows.")
    options = (Field(name, kind, text, is_required=is_answer) for kind, name, text in _CAPTURE_OPTIONS)
    return Shape(name, (destination, *options))


CAPTURE: Final = _capture("Capture", is_answer=True)
CAPTURE_REQUEST: Final = _capture("CaptureSettings", is_answer=False)

CAPTURE_STATISTICS: Final = Shape(
    "CaptureStatistics",
    (
        _number("captured_files", "Files finished since the service started, or the settings changed."),
        _number("captured_events", "Events in them."),
        _number("captured_bytes", "Bytes of these events, as stored."),
        _number("backlog_events", "Events in the log that are in no finished file."),
        _number("backlog_bytes", "Their bytes, as far as Capture has looked."),
        _number("missing_events", "Events that retention took before they were captured."),
        Field("is_failing", Kind.BOOLEAN, "Whether something keeps it from continuing."),
        _text("last_error", "What that is, or was last; empty where nothing ever was."),
    ),
)


def _setting(setting: HubSetting, *, is_change: bool) -> Field:
    words = f"{setting.sentence}."
    if setting.is_nullable:
        words = f"{setting.sentence}; null is {setting.default}."
    elif is_change:
        words = f"Null is {setting.default}."
    kind = Kind.INTEGER if setting.kind is int else Kind.TEXT
    return Field(setting.name, kind, words, not is_change, is_change or setting.is_nullable)


EVENT_HUB: Final = Shape(
    "EventHub",
    (
        _text("name", "As its creator wrote it; compared without regard to case."),
        _text("created_at", "When it was created: ISO 8601, UTC."),
        Field("partition_ids", Kind.STRINGS, '"0", "1", … in order.'),
        *(_setting(setting, is_change=False) for setting in HUB_SETTINGS),
        Field("consumer_groups", Kind.STRINGS, "Their names, $Default first."),
        Field("capture", Kind.OBJECT, "Null: not captured.", is_nullable=True, shape=CAPTURE),
    ),
)

_CHANGEABLE: Final = tuple(_setting(setting, is_change=True) for setting in HUB_SETTINGS)

_PARTITION_COUNT: Final = f"{PARTITION_COUNT_DEFAULT} where it is left out; fixed from then on."

EVENT_HUB_CREATION: Final = Shape(
    "EventHubCreation",
    (
        _text("name", "Letters, digits, '.', '-' and '_'."),
        _number(
            "partition_count",
            _PARTITION_COUNT,
            is_required=False,
        ),
        *_CHANGEABLE,
    ),
)

EVENT_HUB_UPDATE: Final = Shape(
    "EventHubUpdate",
    (_number("partition_count", "May only repeat what it is.", is_required=False), *_CHANGEABLE),
)

PARTITION: Final = Shape(
    "Partition",
    (
        _text("partition_id", '"0", "1", …'),
        _number("begin_sequence_number", "Of the first event held, or of the next one where none is."),
        _number("last_enqueued_sequence_number", "-1 where no event ever came."),
        _text("last_enqueued_offset", '"-1" where no event ever came.'),
        _text("last_enqueued_time", "ISO 8601, UTC; null where no event ever came.", is_nullable=True),
        Field("is_empty", Kind.BOOLEAN, "Whether no event is held."),
    ),
)

_KEY: Final = "Shown only with a Manage claim."

POLICY: Final = Shape(
    "Policy",
    (
        _text("name", "Its name; case-sensitive."),
        Field("claims", Kind.STRINGS, "The rights that its keys give.", choices=_CLAIMS),
        _text("primary_key", _KEY, is_required=False),
        _text("secondary_key", f"Equivalent to the primary key. {_KEY}", is_required=False),
    ),
)

_MADE: Final = "Generated where it is left out or null."

POLICY_CREATION: Final = Shape(
    "PolicyCreation",
    (
        _text("name", "Letters, digits, '.', '-' and '_'."),
        Field("claims", Kind.STRINGS, "At least one; Manage includes the others.", choices=_CLAIMS),
        _text("primary_key", _MADE, is_nullable=True, is_required=False),
        _text("secondary_key", _MADE, is_nullable=True, is_required=False),
    ),
)

KEY_REGENERATION: Final = Shape(
    "KeyRegeneration",
    (
        Field("is_secondary", Kind.BOOLEAN, "Which key; the primary key if left out.", is_required=False),
        _text("key", _MADE, is_nullable=True, is_required=False),
    ),
)

_ERROR_DETAIL: Final = Shape(
    "ErrorDetail",
    (
        _number("status", "The HTTP status."),
        _text("condition", "The AMQP condition that says the same; one word per kind of error."),
        _text("message", "A sentence, and what to do next."),
    ),
)

ERROR: Final = Shape("Error", (Field("error", Kind.OBJECT, "What is wrong.", shape=_ERROR_DETAIL),))

SHAPES: Final = (
    AUDIT_RECORD,
    NAMED,
    NAMESPACE,
    NAMESPACE_UPDATE,
    STATISTICS,
    CAPTURE,
    CAPTURE_REQUEST,
    CAPTURE_STATISTICS,
    EVENT_HUB,
    EVENT_HUB_CREATION,
    EVENT_HUB_UPDATE,
    PARTITION,
    POLICY,
    POLICY_CREATION,
    KEY_REGENERATION,
    _ERROR_DETAIL,
    ERROR,
)
"""All, as the OpenAPI document lists them."""
