"""NATS, Redis and Kafka beside us: the same events written and read, in turns.

    python -m bench.peers [--events N] [--event-bytes N] [--rounds N] [--json FILE]

NATS and Redis are Debian's (``nats-server``, ``redis-server``). Their clients here are the least there can
be: bytes made beforehand, and answers that are counted and not looked at. Kafka's are its own measuring
programs (``bench.kafka_broker``). Ours encodes each event with two properties, and reads each body, so a
ratio is at most what two real clients would show.

Before an event is acknowledged it is on disk with us and with Redis (``appendfsync always``). NATS and Kafka
have written it and do not sync (JetStream 2.9 syncs every two minutes). Each writes to four streams.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import resource
import shutil
import socket
import tempfile
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Final, Self

from rich.console import Console
from tests.support.ports import free_ports
from tests.support.servers import ServerMissingError, TemporaryServer

from bench import stages
from bench.kafka_broker import KafkaBroker, KafkaMissingError
from bench.measure import Measurement, median, timed
from bench.report import as_dict, print_table
from tidegate.testing.hub import HubProcess

_STREAMS: Final = 4
_UNANSWERED_MAX: Final = 4_000
"""Events of a peer that wait for their acknowledgement (our choice: more made neither faster)."""
_BLOCK_EVENTS: Final = 250
_READ_BYTES: Final = 1 << 20
_TIMEOUT_S: Final = 60.0
_PLACES: Final = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin"
_progress = Console(stderr=True)


class PeerServer(TemporaryServer):
    """Another project's log, with the two things that are measured."""

    name: str
    program: str

    def __init__(self) -> None:
        """Raises ServerMissingError."""
        found = shutil.which(self.program, path=_PLACES)
        if found is None:
            raise ServerMissingError(f"no {self.program} on PATH (Debian: {self.program})")
        self._path = found
        super().__init__(self.program)
        (self._port,) = free_ports(1)

    @abstractmethod
    def _command(self) -> list[str]:
        """What starts it, in the foreground."""

    @abstractmethod
    def write(self, bodies: Sequence[bytes]) -> Measurement:
        """Write each event, and wait until all are acknowledged."""

    @abstractmethod
    def read(self, events: int, event_bytes: int) -> Measurement:
        """Read all of what was written last."""

    def start(self) -> None:
        """See ``TemporaryServer``."""
        self._run(self.program, self._command())
        self._wait(self._is_listening, f"{self.name} did not start")

    def stop(self) -> None:
        """See ``TemporaryServer``."""
        for process in self._processes.values():
            process.terminate()
            process.wait(_TIMEOUT_S)
        self._processes.clear()

    def _timed(self, what: str, events: int, event_bytes: int) -> AbstractContextManager[Measurement]:
        return timed(
            f"{what}, {self.name}",
            events=events,
            payload_bytes=events * event_bytes,
            service_pid=self._processes[self.program].pid,
        )

    def _connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self._port), timeout=_TIMEOUT_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _is_listening(self) -> bool:
        try:
            self._connect().close()
        except OSError:
            return False
        return True


class NatsServer(PeerServer):
    """JetStream in a file (docs.nats.io, "Client Protocol" and "JetStream wire API Reference", 2026-11)."""

    name = "NATS"
    program = "nats-server"

    def _command(self) -> list[str]:
        configuration = self._folder / "nats.conf"
        configuration.write_text(
            f'listen: "127.0.0.1:{self._port}"\nmax_pending: 1GB\nmax_payload: 1MB\n'
            f'jetstream {{ store_dir: "{self._folder}", max_file: 100GB, max_mem: 1GB }}\n'
        )
        return [self._path, "-c", str(configuration)]

    def write(self, bodies: Sequence[bytes]) -> Measurement:
        """A stream of its own each time: the one before is deleted."""
        with self._connected() as connection:
            self._ask(connection, "STREAM.DELETE.bench", {})
            self._ask(connection, "STREAM.CREATE.bench", {"name": "bench", "subjects": ["bench.*"]})
            connection.sendall(b"SUB ack 2\r\n")
            blocks = _blocks(
                b"PUB bench.%d ack %d\r\n%b\r\n" % (number % _STREAMS, len(body), body)
                for number, body in enumerate(bodies)
            )
            with self._timed("ingest", len(bodies), len(bodies[0])) as measurement:
                _write(connection, blocks, len(bodies), b'"seq":')
        return measurement

    def read(self, events: int, event_bytes: int) -> Measurement:
        """A push consumer without acknowledgements."""
        with self._connected() as connection:
            connection.sendall(b"SUB read 3\r\n")
            with self._timed("delivery", events, event_bytes) as measurement:
                configuration = {
                    "deliver_subject": "read",
                    "ack_policy": "none",
                    "deliver_policy": "all",
                    "replay_policy": "instant",
                }
                wanted = {"stream_name": "bench", "config": configuration}
                self._send(connection, "CONSUMER.CREATE.bench", wanted)
                _Marks(connection, b"MSG bench.").wait(events)
        return measurement

    def _connected(self) -> socket.socket:
        connection = self._connect()
        options = {"verbose": False, "pedantic": False, "lang": "python", "version": "0"}
        connection.sendall(b"CONNECT %b\r\nSUB answer 1\r\nPING\r\n" % json.dumps(options).encode())
        _until(connection, b"PONG\r\n")
        return connection

    def _send(self, connection: socket.socket, what: str, options: Mapping[str, object]) -> None:
        body = json.dumps(options).encode()
        connection.sendall(b"PUB $JS.API.%b answer %d\r\n%b\r\n" % (what.encode(), len(body), body))

    def _ask(self, connection: socket.socket, what: str, options: Mapping[str, object]) -> None:
        self._send(connection, what, options)
        _until(connection, b'"type":"io.nats.jetstream')
        connection.sendall(b"PING\r\n")
        _until(connection, b"PONG\r\n")  # what is left of the answer


class RedisServer(PeerServer):
    """Streams in an append-only file, synced before each answer (redis.io, "Redis persistence", 2026-11)."""

    name = "Redis"
    program = "redis-server"
    _LAST_ID: Final = re.compile(rb"\$\d+\r\n(\d{10,}-\d+)\r\n")
    _READ_EVENTS: Final = 1_000

    def _command(self) -> list[str]:
        options = {
            "port": str(self._port),
            "bind": "127.0.0.1",
            "dir": str(self._folder),
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
        }
        return [self._path, *(word for name, value in options.items() for word in (f"--{name}", value))]

    def write(self, bodies: Sequence[bytes]) -> Measurement:
        """Streams of their own each time: those before are deleted."""
        with self._connect() as connection:
            connection.sendall(b"FLUSHALL\r\n")
            _until(connection, b"+OK\r\n")
            blocks = _blocks(
                b"*5\r\n$4\r\nXADD\r\n$1\r\n%d\r\n$1\r\n*\r\n$1\r\nb\r\n$%d\r\n%b\r\n"
                % (number % _STREAMS, len(body), body)
                for number, body in enumerate(bodies)
            )
            with self._timed("ingest", len(bodies), len(bodies[0])) as measurement:
                _write(connection, blocks, len(bodies), b"$")
        return measurement

    def read(self, events: int, event_bytes: int) -> Measurement:
        """Each stream from its beginning, a thousand events at a time."""
        with (
            self._connect() as connection,
            self._timed("delivery", events, event_bytes) as measurement,
        ):
            for stream in range(_STREAMS):
                left, after = len(range(stream, events, _STREAMS)), b"-"
                while left:
                    count = min(left, self._READ_EVENTS)
                    connection.sendall(b"XRANGE %d %b + COUNT %d\r\n" % (stream, after, count))
                    after = b"(" + self._last_id(connection, count, event_bytes)
                    left -= count
        return measurement

    def _last_id(self, connection: socket.socket, events: int, event_bytes: int) -> bytes:
        """Receive an answer of that many events; returns the id of the last one."""
        mark = b"*2\r\n$1\r\nb\r\n$%d\r\n" % event_bytes
        data = bytearray()
        while data.count(mark) < events or len(data) < data.rfind(mark) + len(mark) + event_bytes + 2:
            data += _received(connection)
        ids: list[bytes] = self._LAST_ID.findall(data)
        return ids[-1]


def _blocks(events: Iterable[bytes]) -> list[bytes]:
    found = list(events)
    return [b"".join(found[start : start + _BLOCK_EVENTS]) for start in range(0, len(found), _BLOCK_EVENTS)]


def _write(connection: socket.socket, blocks: Sequence[bytes], events: int, mark: bytes) -> None:
    """Send blocks of events, of which so many may be unanswered. mark: is once in each answer."""
    marks = _Marks(connection, mark)
    for number, block in enumerate(blocks):
        marks.wait(number * _BLOCK_EVENTS - _UNANSWERED_MAX)
        connection.sendall(block)
    marks.wait(events)


class _Marks:
    """Counts a mark in what a peer sends."""

    def __init__(self, connection: socket.socket, mark: bytes) -> None:
        self._connection = connection
        self._mark = mark
        self._found = 0
        self._tail = b""

    def wait(self, count: int) -> None:
        """Receive until that many have come, of all since the start."""
        mark = self._mark
        while self._found < count:
            data = self._tail + _received(self._connection)
            self._found += data.count(mark)
            # What a mark may have begun in, without a whole one.
            self._tail = data[max(data.rfind(mark) + len(mark), len(data) - len(mark) + 1) :]


def _until(connection: socket.socket, mark: bytes) -> None:
    data = b""
    while mark not in data:
        data += _received(connection)
    assert b"-ERR" not in data, data


def _received(connection: socket.socket) -> bytes:
    data = connection.recv(_READ_BYTES)
    assert data, "the peer closed the connection"
    return data


class KafkaPeer:
    """Kafka's own measuring programs against its broker: events of one random body, no headers.

    Five times the events: each program starts a Java that has to become warm.
    """

    _TIMES: Final = 5
    _WRITTEN: Final = re.compile(r"records sent, ([0-9.]+) records/sec")

    def __init__(self) -> None:
        """Raises KafkaMissingError."""
        self._broker = KafkaBroker(_STREAMS)
        self._topics = (f"bench-{number}" for number in itertools.count())
        self._topic = ""

    def __enter__(self) -> Self:
        self._broker.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._broker.__exit__(None, None, None)

    def write(self, bodies: Sequence[bytes]) -> Measurement:
        """Into a topic of its own each time."""
        self._topic = next(self._topics)
        return self._measured(
            "ingest", len(bodies), len(bodies[0]),
            "org.apache.kafka.tools.ProducerPerformance",
            "--topic", self._topic, "--num-records", str(len(bodies) * self._TIMES),
            "--record-size", str(len(bodies[0])), "--throughput", "-1", "--producer-props",
            f"bootstrap.servers={self._broker.bootstrap_servers}", "linger.ms=5", "batch.size=500000",
        )  # fmt: skip

    def read(self, events: int, event_bytes: int) -> Measurement:
        """All of it by one consumer."""
        return self._measured(
            "delivery", events, event_bytes,
            "org.apache.kafka.tools.ConsumerPerformance",
            "--topic", self._topic, "--messages", str(events * self._TIMES),
            "--bootstrap-server", self._broker.bootstrap_servers,
        )  # fmt: skip

    def _measured(self, what: str, events: int, event_bytes: int, *command: str) -> Measurement:
        """The rate is the one that the program prints, which leaves the start of its Java out."""
        events *= self._TIMES
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with timed(
            f"{what}, Kafka",
            events=events,
            payload_bytes=events * event_bytes,
            service_pid=self._broker.process_id,
        ) as measurement:
            printed = self._broker.run_tool(*command)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        measurement.client_cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        sent = self._WRITTEN.findall(printed)
        rate = sent[-1] if sent else printed.strip().splitlines()[-1].rpartition(",")[2]
        measurement.wall_s = events / float(rate)
        return measurement


class Ours:
    """The service, measured by the same two calls."""

    def __init__(self, service: HubProcess) -> None:
        self._service = service
        self._hub = ""

    def write(self, bodies: Sequence[bytes]) -> Measurement:
        """Into a hub of its own each time."""
        self._hub = self._service.create_hub(partition_count=_STREAMS)
        return stages.ingest(self._service, self._hub, bodies, _STREAMS)

    def read(self, events: int, event_bytes: int) -> Measurement:
        """Every partition side by side."""
        return stages.delivery(self._service, self._hub, event_bytes, _STREAMS)


def measure(events: int, event_bytes: int, rounds: int) -> list[Measurement]:
    """Ours and each peer in turn, after a round that does not count; medians, ours with the ratios.

    events: of each round; a multiple of the streams. A peer that this machine lacks is left out, and named.
    """
    bodies = [os.urandom(event_bytes // 2).hex().encode() for _ in range(events)]
    found: dict[str, list[Measurement]] = {}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-bench-"))
        logs: list[Ours | PeerServer | KafkaPeer] = [Ours(stack.enter_context(HubProcess(Path(folder))))]
        kinds: tuple[type[PeerServer | KafkaPeer], ...] = (NatsServer, RedisServer, KafkaPeer)
        for kind in kinds:
            try:
                started = kind()
                stack.enter_context(started)
                logs.append(started)
            except (ServerMissingError, KafkaMissingError) as error:
                _progress.print(f"without {kind.__name__}: {error}")
        for number in range(rounds + 1):
            _progress.print(f"round {number} of {rounds} …")
            for log in logs:
                for one in (log.write(bodies), log.read(events, len(bodies[0]))):
                    found.setdefault(one.name, []).extend([one] if number else [])
    medians = [median(each) for each in found.values()]
    for ours in medians[:2]:
        for peer in medians[2:]:
            if peer.name.split(",")[0] == ours.name.split(",")[0]:
                ours.compare_with(peer)
    return medians


def main() -> None:
    """Parse the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--events", type=int, default=200_000, help="of each round")
    parser.add_argument("--event-bytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the medians there, too")
    given = parser.parse_args()
    found = measure(given.events - given.events % _STREAMS, given.event_bytes, given.rounds)
    print_table(found[2:], found[:2])
    if given.json is not None:
        given.json.write_text(json.dumps([as_dict(each) for each in found], indent=2))


if __name__ == "__main__":
    main()
