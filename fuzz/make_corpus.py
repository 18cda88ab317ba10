"""Writes ``fuzz/corpus`` anew: ``python -m fuzz.make_corpus``. Bytes of ours and of azure-eventhub 5.15.1.

A crash that somebody finds goes to ``fuzz/crash/<target>/`` by hand and stays there.
"""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from azure.eventhub._pyamqp.message import Header, Message, Properties
from tests.wire.official_client import batch_payload, event, message_payload

from tidegate.amqp import message as ours
from tidegate.amqp.encode import encode_value
from tidegate.amqp.frames import EMPTY_FRAME, SASL_HEADER, encode_frame
from tidegate.amqp.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Open,
    Performative,
    Source,
    Target,
    Transfer,
    encode_performative,
)
from tidegate.amqp.sasl import ANONYMOUS, SaslInit, SaslMechanisms, SaslOutcome, encode_sasl
from tidegate.amqp.types import Array, Char, Decimal, Described, Float, Symbol, Timestamp, UInt, ULong
from tidegate.model.events import EventData
from tidegate.model.position import EventPosition
from tidegate.wire.batch import batch_envelope, wrap_event
from tidegate.wire.delivery import batched_delivery_prefix, event_deliveries
from tidegate.wire.event_codec import encode_event
from tidegate.wire.selector import selector_filter

CORPUS = Path(__file__).parent / "corpus"


def corpus() -> dict[str, dict[str, bytes]]:
    """Target, then name, then bytes."""
    filters = selector_filter(EventPosition.latest())
    performatives: dict[str, Performative] = {
        "open": Open("c", "h", properties={Symbol("product"): "x"}, desired_capabilities=(Symbol("y"),)),
        "begin": Begin(remote_channel=1, next_outgoing_id=1, incoming_window=2, outgoing_window=3),
        "attach": Attach(
            "n",
            0,
            True,
            source=Source("a", filter=filters),
            target=Target("b"),
        ),
        "flow": Flow(incoming_window=1, next_outgoing_id=2, outgoing_window=3, handle=0, link_credit=300),
        "transfer": Transfer(0, 1, b"tag", 0, True),
        "disposition": Disposition(True, 1, 2, True, Accepted()),
        "detach": Detach(0, True, Error(Symbol("amqp:link:stolen"), "text")),
        "end": End(),
        "close": Close(Error(Symbol("amqp:connection:forced"))),
    }
    sasl = {
        "mechanisms": encode_sasl(SaslMechanisms((ANONYMOUS,))),
        "init": encode_sasl(SaslInit(ANONYMOUS, b"\0key")),
        "outcome": encode_sasl(SaslOutcome(0)),
    }
    encoded = {name: encode_performative(item) for name, item in performatives.items()}
    plain = encode_event(EventData(b"body", {"n": 5, "t": "x", "u": UUID(int=3)}, "text/plain", "id"), "key")
    stored = wrap_event(plain) + wrap_event(b"x" * 300)
    delivered = event_deliveries(
        stored, [len(wrap_event(plain))], first_sequence_number=9, enqueued_time_ms=5
    )
    prefix = batched_delivery_prefix(first_sequence_number=1, enqueued_time_ms=2, event_count=2)
    theirs = Message(
        header=Header(durable=True),
        delivery_annotations={b"d": 1},
        message_annotations={b"x-opt-partition-key": "k"},
        properties=Properties(message_id=UUID(int=7)),
        application_properties={"a": 1.5},
        data=[b"one", b"two"],
        footer={b"f": "z"},
    )
    values: list[object] = [
        {Symbol("k"): [1, None, True, 1.5, Float(2.5)], "t": b"x" * 300},
        Array.of(UInt, range(5)),
        Array((Described(Symbol("d"), ["x"]), Described(Symbol("d"), [])), Described),
        [Char("c"), Decimal(b"1234"), Timestamp(5), UUID(int=1), Described(ULong(5), {"a": Array((), str)})],
    ]
    return {
        "value": {f"value-{index}": encode_value(value) for index, value in enumerate(values)},
        "performative": encoded,
        "sasl": sasl,
        "frames": {
            "sasl": SASL_HEADER.encode() + encode_frame(0, sasl["init"], 1),
            "amqp": encode_frame(0, encoded["open"]) + EMPTY_FRAME + encode_frame(1, encoded["begin"]),
        },
        "message": {
            "azure-eventhub-5.15.1": message_payload(theirs),
            "value": ours.encode_message(ours.Message(value={"k": [1, None]}, footer={"f": 1})),
            "sequence": ours.encode_message(ours.Message(sequences=([1], ["a"]))),
        },
        "batch": {
            "azure-eventhub-5.15.1": batch_payload([event(b"a", n=1), event(b"x" * 300)], partition_key="k"),
            "tidegate": batch_envelope(
                partition_key="k", producer_id=1, producer_epoch=2, producer_sequence_number=3
            )
            + stored,
            "delivery": prefix + stored,
        },
        "event": {
            "tidegate": plain,
            "delivered": delivered[0],
            "azure-eventhub-5.15.1": message_payload(theirs),
        },
    }


def main() -> None:
    """Write the files."""
    for target, items in corpus().items():
        folder = CORPUS / target
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in items.items():
            (folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
