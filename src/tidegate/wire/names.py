"""Names that clients and the service share: annotations, properties, capabilities, nodes.

The ``com.microsoft:…`` and ``x-opt-…`` names are Event Hubs' own (from the official clients' sources); the
``tidegate:…`` ones are extensions that both sides must announce before either uses them.
"""

from __future__ import annotations

from typing import Final

from tidegate.amqp.types import Symbol

SEQUENCE_NUMBER: Final = Symbol("x-opt-sequence-number")
OFFSET: Final = Symbol("x-opt-offset")
ENQUEUED_TIME: Final = Symbol("x-opt-enqueued-time")
PARTITION_KEY: Final = Symbol("x-opt-partition-key")
PUBLISHER: Final = Symbol("x-opt-publisher")
"""Message annotations."""

PRODUCER_ID: Final = Symbol("com.microsoft:producer-id")
PRODUCER_EPOCH: Final = Symbol("com.microsoft:producer-epoch")
PRODUCER_SEQUENCE_NUMBER: Final = Symbol("com.microsoft:producer-sequence-number")
"""Message annotations and link properties of idempotent producers: long, short, int."""

LAST_ENQUEUED_SEQUENCE_NUMBER: Final = Symbol("last_enqueued_sequence_number")
LAST_ENQUEUED_OFFSET: Final = Symbol("last_enqueued_offset")
LAST_ENQUEUED_TIME_UTC: Final = Symbol("last_enqueued_time_utc")
RUNTIME_INFO_RETRIEVAL_TIME_UTC: Final = Symbol("runtime_info_retrieval_time_utc")
"""Delivery annotations for receivers that asked for runtime metrics."""

EPOCH: Final = Symbol("com.microsoft:epoch")
RECEIVER_NAME: Final = Symbol("com.microsoft:receiver-name")
TRACKING_ID: Final = Symbol("com.microsoft:tracking-id")
"""Link properties. The epoch is the owner level of an exclusive receiver (long)."""

RUNTIME_METRIC_CAPABILITY: Final = Symbol("com.microsoft:enable-receiver-runtime-metric")
IDEMPOTENT_PRODUCER_CAPABILITY: Final = Symbol("com.microsoft:idempotent-producer")
"""Link capabilities of Event Hubs."""

BATCH_DELIVERY_CAPABILITY: Final = Symbol("tidegate:batch-delivery")
"""A receiver that desires it, and is offered it, gets slices of record batches (``wire.delivery``)."""
IDEMPOTENT_BATCH_CAPABILITY: Final = Symbol("tidegate:idempotent-batch")
"""A sender that desires it, and is offered it, numbers its batches in their envelopes (``wire.batch``)."""
PRODUCERS_KNOWN_SINCE: Final = Symbol("tidegate:producers-known-since")
"""Property of such a sender's link, from the service, if the sender names itself: a producer that has written
to the partition at this sequence number or beyond is known to it. A long."""
PEEK_CAPABILITY: Final = Symbol("tidegate:peek")
"""A receiver that desires it, and is offered it, reads beside the owner of a partition. It has no level."""
HISTORY_CAPABILITY: Final = Symbol("tidegate:history")
"""A receiver that desires it, and is offered it, learns the partition's histories (``model.history``)."""
HISTORIES: Final = Symbol("tidegate:histories")
"""Property of such a receiver's link, from the service: see ``histories_to_list``. They are those of every
event that the link delivers."""
HISTORY_ID: Final = Symbol("tidegate:history-id")
"""Property of such a receiver's link, from the client: the history in which it read the events before its
position."""
EVENT_COUNT: Final = Symbol("tidegate:event-count")
"""Message annotation of a batched delivery: the number of its events (int)."""

SELECTOR_FILTER: Final = Symbol("apache.org:selector-filter:string")
"""The key of the filter with a receiver's start position."""

CBS_NODE: Final = "$cbs"
MANAGEMENT_NODE: Final = "$management"
"""Addresses of the request/response nodes."""

EVENT_HUB_ENTITY: Final = "com.microsoft:eventhub"
PARTITION_ENTITY: Final = "com.microsoft:partition"
"""Entity types in ``$management`` requests."""

REQUEST_BYTES_MAX: Final = 65_536
"""max-message-size of links to ``$management`` (our choice)."""
STRANGER_REQUEST_BYTES_MAX: Final = 16_384
"""max-message-size of links to ``$cbs``, and of links to ``$management`` that a client attaches before it has
presented a token. Our choice: twice the longest token (Azure names no limit: vcabbage/amqp#43)."""
