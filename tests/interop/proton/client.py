"""Cases with Qpid Proton, a generic AMQP 1.0 client, run by the interpreter that has it (suites/proton.py).

Prints a JSON object about each case, as tests/interop/suites/programs.py says.
"""

# mypy: disable-error-code="misc"

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import signal
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, Final
from urllib.parse import quote

from proton import ConnectionException, Described, Message, SSLDomain, Timeout, symbol, ulong
from proton._utils import Fetcher
from proton.reactor import AtLeastOnce, AtMostOnce, Filter, LinkOption, Selector
from proton.utils import (
    BlockingConnection,
    BlockingReceiver,
    LinkDetached,
    SendException,
    SyncRequestResponse,
)

HUB: Final = os.environ["TIDEGATE_HUB"]
PARTS: Final = dict(
    part.split("=", 1) for part in os.environ["TIDEGATE_CONNECTION_STRING"].split(";") if part
)
POLICY, KEY = PARTS["SharedAccessKeyName"], PARTS["SharedAccessKey"]
AUTHORITY: Final = PARTS["Endpoint"].removeprefix("sb://").rstrip("/")
IS_TLS: Final = os.environ["TIDEGATE_TRANSPORT"] == "tls"
CASE_S_MAX: Final = 60
WAIT_S: Final = 20.0
INFINITE: Final = 2**30 - 1
"""Proton grants it twice, so that it is the most that fits into its numbers."""

CASES: list[tuple[str, Callable[[], None]]] = []


def case(name: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """A function that fails with any exception."""

    def add(function: Callable[[], None]) -> Callable[[], None]:
        CASES.append((name, function))
        return function

    return add


class Attach(LinkOption):
    """Name a link's settlement modes and properties."""

    def __init__(self, *, rcv_settle_mode: int | None = None, epoch: int | None = None) -> None:
        self._rcv_settle_mode, self._epoch = rcv_settle_mode, epoch

    def apply(self, link: Any) -> None:
        """See Proton's LinkOption."""
        if self._rcv_settle_mode is not None:
            link.snd_settle_mode, link.rcv_settle_mode = link.SND_UNSETTLED, self._rcv_settle_mode
        if self._epoch is not None:
            link.properties = {symbol("com.microsoft:epoch"): self._epoch}


def connect(*, mechanism: str = "PLAIN", key: str = KEY, **options: Any) -> BlockingConnection:
    """SASL PLAIN takes a policy and its key; with ANONYMOUS a token follows on $cbs."""
    domain = None
    if IS_TLS:
        domain = SSLDomain(SSLDomain.MODE_CLIENT)
        domain.set_trusted_ca_db(os.environ["TIDEGATE_CA_FILE"])
        domain.set_peer_authentication(SSLDomain.VERIFY_PEER_NAME)
    credentials = {"user": POLICY, "password": key} if mechanism == "PLAIN" else {}
    return BlockingConnection(
        f"{'amqps' if IS_TLS else 'amqp'}://{AUTHORITY}",
        timeout=WAIT_S,
        ssl_domain=domain,
        allowed_mechs=mechanism,
        allow_insecure_mechs=True,
        sasl_enabled=True,
        **credentials,
        **options,
    )


def source(partition: int) -> str:
    """Where a partition's events come from."""
    return f"{HUB}/ConsumerGroups/$Default/Partitions/{partition}"


def send(connection: BlockingConnection, partition: int, *bodies: bytes) -> None:
    """Send, each event by itself."""
    sender = connection.create_sender(f"{HUB}/Partitions/{partition}", name=uuid.uuid4().hex)
    for body in bodies:
        sender.send(Message(body=body))
    sender.close()


def receive(
    connection: BlockingConnection, partition: int, *options: Any, credit: int = 10, name: str = ""
) -> BlockingReceiver:
    """A receiver with a link name of its own, unless ``name`` is given."""
    return connection.create_receiver(
        source(partition), credit=credit, name=name or uuid.uuid4().hex, options=list(options)
    )


def after(number: int) -> Selector:
    """Events behind this sequence number."""
    return Selector(f"amqp.annotation.x-opt-sequence-number > '{number}'")


def end(connection: BlockingConnection, partition: int) -> int:
    """The partition's last sequence number, by $management and a dynamic reply-to."""
    requests = SyncRequestResponse(connection, "$management")
    asked = {"operation": "READ", "name": HUB, "type": "com.microsoft:partition", "partition": str(partition)}
    answer = requests.call(Message(properties=asked))
    requests.sender.close()
    requests.receiver.close()
    assert answer.properties["status-code"] == 200, answer.properties
    number: int = answer.body["last_enqueued_sequence_number"]
    return number


def body(message: Message) -> bytes:
    """Its data."""
    return bytes(message.body)


def refused(
    kinds: type[Exception] | tuple[type[Exception], ...], words: str, step: Callable[[], object]
) -> None:
    """The step raises one of ``kinds`` with these words in it."""
    try:
        step()
    except kinds as error:
        said = str(error)
    else:
        raise AssertionError(f"nothing was refused; expected {words!r}")
    assert words in said, f"expected {words!r} in {said!r}"


@case("send and receive")
def send_and_receive() -> None:
    """Data, value and properties arrive as they were sent."""
    connection = connect()
    last = end(connection, 0)
    sender = connection.create_sender(f"{HUB}/Partitions/0")
    properties = {"text": "żółw", "number": 7, "yes": True, "uuid": uuid.UUID(int=5)}
    sender.send(Message(body=b"\x00\xff", properties=properties, subject="subject", id="id"))
    sender.send(Message(body={"value": [1, "two"]}))
    receiver = receive(connection, 0, after(last))
    first, second = receiver.receive(WAIT_S), receiver.receive(WAIT_S)
    assert (body(first), first.properties) == (b"\x00\xff", properties), first
    assert (first.subject, first.id) == ("subject", "id"), first
    assert first.annotations[symbol("x-opt-sequence-number")] == last + 1, first.annotations
    assert second.body == {"value": [1, "two"]}, second
    connection.close()


@case("send settled")
def send_settled() -> None:
    """Events that are sent settled are stored."""
    connection = connect()
    last = end(connection, 0)
    sender = connection.create_sender(f"{HUB}/Partitions/0", options=AtMostOnce())
    for number in range(5):
        sender.link.send(Message(body=b"%d" % number))
    receiver = receive(connection, 0, after(last))
    assert [body(receiver.receive(WAIT_S)) for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
    connection.close()


@case("partition keys")
def partition_keys() -> None:
    """A key chooses the partition; on a partition's own link it is kept, and the link decides."""
    connection = connect()
    by_hash, by_link = end(connection, 2), end(connection, 1)
    annotations = {symbol("x-opt-partition-key"): "漢字"}
    for address in (HUB, f"{HUB}/Partitions/1"):
        connection.create_sender(address).send(Message(body=b"keyed", annotations=annotations))
    for partition, last in ((2, by_hash), (1, by_link)):
        found = receive(connection, partition, after(last)).receive(WAIT_S)
        assert found.annotations[symbol("x-opt-partition-key")] == "漢字", found.annotations
    connection.close()


@case("all credit that fits, and a window of 2^31 - 1")
def infinite_credit() -> None:
    """What Proton opens by default, and as much credit as it takes: 3,000 events come, old and new ones."""
    connection = connect()
    last = end(connection, 3)
    receiver = receive(connection, 3, after(last), credit=INFINITE)
    sender = connection.create_sender(f"{HUB}/Partitions/3", options=AtMostOnce())
    for number in range(3000):
        sender.link.send(Message(body=b"%d" % number))
    found = [body(receiver.receive(WAIT_S)) for _ in range(3000)]
    assert found == [b"%d" % number for number in range(3000)]
    connection.close()


@case("settle deliveries that came unsettled")
def settle() -> None:
    """Accepted, rejected, released and modified: each settles, and the log stays as it is."""
    connection = connect()
    last = end(connection, 0)
    send(connection, 0, *(b"%d" % number for number in range(8)))
    receiver = receive(connection, 0, after(last), AtLeastOnce())
    for settle_one in (
        receiver.accept,
        receiver.reject,
        receiver.release,
        lambda: receiver.release(delivered=False),
    ):
        receiver.receive(WAIT_S)
        settle_one()
    assert body(receiver.receive(WAIT_S)) == b"4"
    receiver.accept()
    receiver.close()
    second = receive(connection, 0, after(last), Attach(rcv_settle_mode=1))
    assert [body(second.receive(WAIT_S)) for _ in range(2)] == [b"0", b"1"]
    second.accept()
    connection.close()


@case("selectors")
def selectors() -> None:
    """Each form that the service's documents show, by the key that Proton gives selectors."""
    connection = connect()
    last = end(connection, 0)
    send(connection, 0, b"a", b"b", b"c")
    number = "amqp.annotation.x-opt-sequence-number"
    for selector, expected in {
        f"{number} > '{last + 1}'": b"b",
        f"{number} >= '{last + 1}'": b"a",
        f'{number} > "{last + 2}"': b"c",
        f"{number} > {last + 2}": b"c",
        f"AMQP.ANNOTATION.X-OPT-SEQUENCE-NUMBER > '{last}' AND amqp.annotation.x-opt-enqueued-time > 5": b"a",
        "amqp.annotation.x-opt-offset > '-1'": None,
    }.items():
        receiver = receive(connection, 0, Selector(selector))
        found = receiver.receive(WAIT_S)
        assert expected is None or body(found) == expected, f"{selector}: {found}"
        receiver.close()
    latest = receive(connection, 0, Selector("amqp.annotation.x-opt-offset > '@latest'"))
    send(connection, 0, b"new")
    assert body(latest.receive(WAIT_S)) == b"new"
    refused(
        LinkDetached, "colour", lambda: receive(connection, 0, Selector("colour = 'red'")).receive(WAIT_S)
    )
    connection.close()


@case("an unknown filter is not in force")
def unknown_filter() -> None:
    """AMQP part 3 section 3.5.8: what the answer does not echo does not filter."""
    connection = connect()
    send(connection, 0, b"x")
    key = symbol("example.org:colour")
    receiver = receive(connection, 0, Filter({key: Described(ulong(0x123400000001), "red")}))
    receiver.receive(WAIT_S)
    echoed = receiver.link.remote_source.filter
    echoed.rewind()
    in_force = echoed.get_object() if echoed.next() else {}
    assert key not in (in_force or {}), in_force
    connection.close()


@case("a link of the same name steals the first")
def same_name() -> None:
    """The first ends with amqp:link:stolen, and the connection goes on (AMQP part 2 section 2.6.1)."""
    connection = connect()
    send(connection, 0, b"x")
    receive(connection, 0, name="one name").receive(WAIT_S)
    # BlockingConnection raises the first link's error while the second opens.
    events = Fetcher(connection, 1)
    second = connection.container.create_receiver(connection.conn, source(0), name="one name", handler=events)
    second.flow(1)
    refused(LinkDetached, "amqp:link:stolen", lambda: connection.wait(lambda: False))
    connection.wait(lambda: events.has_message)
    send(connection, 0, b"still there")
    connection.close()


def drain_until_error(receiver: BlockingReceiver) -> None:
    """What had come before the error comes first."""
    while True:
        receiver.receive(WAIT_S)


@case("a higher epoch steals the partition")
def epochs() -> None:
    """Epochs are a link property that any client can set."""
    connection, other = connect(), connect()
    send(connection, 0, b"x")
    low = receive(connection, 0, Attach(epoch=1))
    low.receive(WAIT_S)
    high = receive(other, 0, Attach(epoch=2))
    high.receive(WAIT_S)
    refused(LinkDetached, "amqp:link:stolen", lambda: drain_until_error(low))
    refused(LinkDetached, "amqp:link:stolen", lambda: receive(connection, 0).receive(WAIT_S))
    other.close()
    connection.close()


@case("drain")
def drain() -> None:
    """All events that there are come, and then the rest of the credit is given back."""
    connection = connect()
    last = end(connection, 0)
    send(connection, 0, b"a", b"b")
    receiver = receive(connection, 0, after(last), credit=0)
    receiver.link.drain(100)
    connection.wait(lambda: not receiver.link.draining(), msg="draining")
    connection.wait(lambda: len(receiver.fetcher.incoming) == 2, msg="what came before the credit was gone")
    assert [body(receiver.fetcher.pop()) for _ in range(2)] == [b"a", b"b"]
    assert receiver.link.credit == 0, receiver.link.credit
    receiver.link.drain_mode = False
    receiver.link.flow(1)
    send(connection, 0, b"c")
    assert body(receiver.receive(WAIT_S)) == b"c"
    connection.close()


@case("$management with a dynamic reply-to")
def management() -> None:
    """The service makes up an address, and answers there."""
    connection = connect()
    requests = SyncRequestResponse(connection, "$management")
    assert requests.reply_to, "no address"
    asked = {"operation": "READ", "name": HUB, "type": "com.microsoft:eventhub"}
    answer = requests.call(Message(properties=asked))
    assert answer.properties["status-code"] == 200, answer.properties
    assert list(answer.body["partition_ids"].elements) == ["0", "1", "2", "3"], answer.body
    unknown = requests.call(Message(properties=asked | {"type": "com.microsoft:partition", "partition": "9"}))
    assert unknown.properties["status-code"] == 400, unknown.properties
    connection.close()


@case("a token on $cbs")
def put_token() -> None:
    """Without one nothing opens; with one the connection may do what its policy may."""
    connection = connect(mechanism="ANONYMOUS")
    refused(
        LinkDetached,
        "amqp:unauthorized-access",
        lambda: connection.create_sender(HUB).send(Message(body=b"x")),
    )
    answer = SyncRequestResponse(connection, "$cbs").call(
        Message(
            body=signature(f"sb://{AUTHORITY.partition(':')[0]}/{HUB}"),
            properties={
                "operation": "put-token",
                "type": "servicebus.windows.net:sastoken",
                "name": f"sb://{AUTHORITY.partition(':')[0]}/{HUB}",
            },
        )
    )
    assert answer.properties["status-code"] == 202, answer.properties
    connection.create_sender(HUB, name="with a token").send(Message(body=b"x"))
    connection.close()


def signature(resource: str) -> str:
    """A shared access signature that is good for ten minutes."""
    encoded, expiry = quote(resource, safe=""), int(time.time()) + 600  # noqa: TID251 - the program runs apart from Tidegate
    digest = hmac.new(KEY.encode(), f"{encoded}\n{expiry}".encode(), hashlib.sha256).digest()
    proof = quote(base64.b64encode(digest), safe="")
    return f"SharedAccessSignature sr={encoded}&sig={proof}&se={expiry}&skn={POLICY}"


@case("SASL PLAIN with a wrong key")
def wrong_key() -> None:
    """The connection is refused, and says that it was the credentials."""
    refused(ConnectionException, "Authentication failed", lambda: connect(key="wrong"))


@case("unknown hub and unknown partition")
def unknown() -> None:
    """Each link is refused with its own condition, and the connection goes on."""
    connection = connect()
    for address, condition in {
        "no-such-hub": "amqp:not-found",
        f"{HUB}/Partitions/9": "com.microsoft:argument-out-of-range",
    }.items():
        refused(
            LinkDetached, condition, lambda address=address: connection.create_sender(address).send(Message())
        )
    refused(
        LinkDetached,
        "com.microsoft:argument-out-of-range",
        lambda: connection.create_receiver(source(9), credit=1).receive(WAIT_S),
    )
    send(connection, 0, b"still there")
    connection.close()


@case("large messages")
def large() -> None:
    """1,000,000 bytes cross in many frames; what is over the limit is refused."""
    connection = connect()
    last = end(connection, 0)
    large = os.urandom(1_000_000)
    send(connection, 0, large)
    assert body(receive(connection, 0, after(last)).receive(WAIT_S)) == large
    refused((LinkDetached, SendException), "", lambda: send(connection, 0, bytes(1_100_000)))
    connection.close()


class WithProperties(LinkOption):
    """A link with these properties."""

    def __init__(self, properties: dict[Any, Any]) -> None:
        self.properties = properties

    def apply(self, link: Any) -> None:
        """See ``LinkOption``."""
        link.properties = self.properties


@case("small frames")
def small_frames() -> None:
    """With frames of 512 bytes events cross, long link properties are not repeated, and errors are short."""
    connection = connect(max_frame_size=512)
    last = end(connection, 0)
    long, short = symbol("long"), symbol("short")
    sender = connection.create_sender(
        f"{HUB}/Partitions/0", name=uuid.uuid4().hex, options=WithProperties({long: "l" * 400, short: "s"})
    )
    repeated = sender.link.remote_properties
    assert long not in repeated, repeated
    assert repeated[short] == "s", repeated
    sender.send(Message(body=bytes(5000)))
    assert body(receive(connection, 0, after(last)).receive(WAIT_S)) == bytes(5000)
    refused(LinkDetached, "Cannot parse the position", lambda: receive(connection, 0, Selector("c" * 300)))
    connection.close()


@case("heartbeats")
def heartbeats() -> None:
    """A peer that hears nothing for a second would end the connection."""
    connection = connect(heartbeat=1)
    with suppress(Timeout):
        connection.wait(lambda: False, timeout=4)
    send(connection, 0, b"still there")
    connection.close()


def run(name: str, function: Callable[[], None]) -> None:
    """Print how one case ended."""
    outcome, detail = "passed", ""
    signal.alarm(CASE_S_MAX)
    try:
        function()
    except Exception as error:
        outcome, detail = "failed", f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
    print(json.dumps({"name": name, "outcome": outcome, "detail": detail}), flush=True)


def main() -> None:
    """Run the cases that are asked for."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"still running after {CASE_S_MAX} s")

    signal.signal(signal.SIGALRM, late)
    chosen = os.environ["TIDEGATE_CASES"].split("\n") if os.environ["TIDEGATE_CASES"] else None
    for name, function in CASES:
        if chosen is None or name in chosen:
            run(name, function)


if __name__ == "__main__":
    main()
