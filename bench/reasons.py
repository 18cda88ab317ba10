"""Why a target is not reached: a paragraph for each group of rows, and what bounds them.

A paragraph has figures of the run that it explains, and shares and costs from profiles that are no part of a
run: those are constants here, and their commit says how they were measured. ``REASONS`` is the table: the
first entry that fits a row explains it, and a paragraph is written where a row of its group is not reached.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bench.measure import Figure, Found, Measurement
from bench.targets import EXACTLY_ONCE_RATIO, KAFKA_READ, targets_of

_CORES: Final = 2
_QUIET_EVENTS_PER_S: Final = {
    ("peers", "ingest, NATS"): 166_000,
    ("peers", "ingest, Redis"): 96_000,
    ("peers", "ingest, Kafka"): 145_000,
    ("peers", "delivery, NATS"): 302_000,
    ("peers", "delivery, Redis"): 466_000,
    ("peers", "delivery, Kafka"): 448_000,
    ("sdk", "ingest, official SDK"): 21_600,
    ("sdk", "delivery, official SDK"): 26_000,
}
"""What others reached on the machine, and in the hour, for which the targets of rates were set."""
_IN_USERS_FUNCTION: Final = {"SQLite": 0.33, "PostgreSQL": 0.38}
"""Of a host's samples with the interpreter's lock: a Pipeline's function, and the properties it reads."""
_IN_APPENDS: Final = 0.47
"""Of the service's samples with the lock, 64 senders on one link: appending, and the journal's thread."""
_CPU_MS_PER_KEYED_CALL: Final = 0.75
"""Of service, publisher and host together for a call of the handler, with one or two events."""

_CRYPTO_US: Final = 0.4
"""Of OpenSSL alone for an event of 1 KB on each side (``openssl speed``, AES-256-GCM, pieces of 16 KB)."""
_SESSION_KB: Final = 25.5
"""Of OpenSSL alone for a session after its handshake and 3 KB of data, with the two pipes that its bytes go
through (2,000 of them in a process that does nothing else; 21.4 without the data)."""


@dataclass(frozen=True, slots=True)
class Run:
    """What was measured, by the name of the part."""

    parts: Mapping[str, Found]

    def one(self, part: str, name: str) -> Measurement:
        """A stage or a baseline. Raises LookupError if this run has not measured it."""
        for each in (*self.parts[part].stages, *self.parts[part].baselines):
            if each.name == name:
                return each
        raise LookupError(name)

    def figure(self, part: str, what: str) -> Figure:
        """A figure. Raises LookupError if this run has not measured it."""
        return {each.what: each for each in self.parts[part].figures}[what]


@dataclass(frozen=True, slots=True)
class Reason:
    """Explains a group of rows."""

    part: str
    """A regular expression for the names of parts."""
    row: str
    """One for a row: its stage and what it is compared with, with "; " between them, or its figure."""
    text: Callable[[Run, str, Sequence[str]], str]
    """Gets the run, the part and the group's stages (or figures) that did not reach their targets. May raise
    LookupError: the run lacks what the paragraph needs."""


def reasons_of(part: str, parts: Mapping[str, Found]) -> list[str]:
    """The paragraphs for a part's rows that did not reach their targets, in the order of ``REASONS``."""
    found = parts[part]
    rows = [
        (each.stage, f"{each.stage}; {each.compared_with}")
        for each in targets_of(found.stages)
        if not each.is_met
    ]
    rows += [(each.what, each.what) for each in found.figures if not each.is_reached]
    groups: dict[int, list[str]] = {}
    unexplained = []
    for name, row in rows:
        for index, reason in enumerate(REASONS):
            if re.fullmatch(reason.part, part) and re.fullmatch(reason.row, row):
                groups.setdefault(index, []).append(name)
                break
        else:
            unexplained.append(row)
    texts = []
    for index in sorted(groups):
        try:
            texts.append(f"**Why:** {REASONS[index].text(Run(parts), part, groups[index])}")
        except LookupError:
            continue  # Only some of the parts, or of the peers, were measured.
    if unexplained:
        texts.append(f"**Not explained:** {', '.join(unexplained)}.")
    return texts


def _rates(run: Run, part: str, names: Sequence[str]) -> str:
    bounds = []
    for name in names:
        stage = run.one(part, name)
        service, client = stage.service_us_per_event, stage.cpu_us_per_event - stage.service_us_per_event
        # Spark works in many processes; ours are one thread at either end.
        busiest = 0.0 if part == "spark" else max(client, service)
        best = 1e6 / max(busiest, (client + service) / _CORES)
        bounds.append(f"{name} {best:,.0f} ({client:.1f} + {service:.1f})")
    sides = "Spark + service on both cores" if part == "spark" else "client + service, with a core for each"
    return (
        f"{_machine(run, part)} With the CPU of this run (µs an event: {sides}) and no wait, the most is, in "
        f"events/s: {'; '.join(bounds)}."
    )


def _machine(run: Run, part: str) -> str:
    """What rates here are of those in the hour for which the targets were set."""
    if part != "log" and "log" in run.parts:
        return "for the machine and its hour see *log*."
    shares = [
        f"{each.name} {each.events_per_s / _QUIET_EVENTS_PER_S[where, each.name]:.2f}"
        for where, found in run.parts.items()
        for each in (*found.stages, *found.baselines)
        if (where, each.name) in _QUIET_EVENTS_PER_S
    ]
    others = f"in this run others have, of what they did when the targets were set: {'; '.join(shares)}"
    return (
        f"{others if shares else 'rates differ from hour to hour'}. Ours was below the targets then, too: "
        "ingest 226,000, or 331,000 without properties, delivery 349,000, Spark's read 425,000."
    )


def _ingest(run: Run, part: str, names: Sequence[str]) -> str:
    ours, small = run.one(part, "ingest, our producer"), run.one(part, "ingest, our producer, 100 B")
    nats = run.one(part, "ingest, NATS")
    service = ours.service_us_per_event
    client = ours.cpu_us_per_event - service
    alone = [1e6 / each / nats.events_per_s for each in (client, service)]
    return (
        f"an event of 1 KB costs {ours.cpu_us_per_event:.1f} µs of CPU, one of 100 B "
        f"{small.cpu_us_per_event:.1f}: most of it moves bytes. Producer ({client:.1f}) and service "
        f"({service:.1f}) are one thread each. If the service cost nothing, {alone[0]:.2f} × NATS would be "
        f"the most, and {alone[1]:.2f} if the producer did; 3 × needs both below "
        f"{1e6 / (3 * nats.events_per_s):.1f} µs, with a compiled batch codec and fewer copies and scans of "
        "the bytes. Profile of the service: 35 % AMQP frames and putting them together, 11 % finding the "
        "events' bounds, 11 % one search for forged publishers, 11 % append and journal, 10 % turns, 7 % "
        "copies from the socket. NATS' client here sends bytes made beforehand, and NATS acknowledges before "
        "it syncs."
    )


def _tls_ingest(run: Run, part: str, names: Sequence[str]) -> str:
    plain, tls = run.one(part, "ingest, two properties"), run.one(part, "ingest, TLS")
    (client, service), (tls_client, tls_service) = (
        (each.cpu_us_per_event - each.service_us_per_event, each.service_us_per_event)
        for each in (plain, tls)
    )
    busiest = max(client, service)
    return (
        f"TLS adds {tls_client - client:.1f} µs of CPU an event to the producer's {client:.1f} and "
        f"{tls_service - service:.1f} to the service's {service:.1f}, each in its one thread. Profile: of "
        "the service's 24 % are TLS (18 % OpenSSL's reads) and 51 % what plain events cost as well; of the "
        "producer's 19 % are TLS (11 % OpenSSL's writes), and 22 % the socket and the copies of what it does "
        f"not take at once, 15 % without TLS. OpenSSL alone takes {_CRYPTO_US} µs an event on either side: "
        f"the bound, {busiest / (busiest + _CRYPTO_US):.2f}."
    )


def _partitions(run: Run, part: str, names: Sequence[str]) -> str:
    one, many = (
        run.one(part, f"ingest, {partitions}").cpu_us_per_event
        for partitions in ("1 partition", "1,024 partitions")
    )
    return (
        "batches of 1,024 partitions are smaller, and the table above has what one of them costs, beside as "
        f"many of that size in one. In this run an event's ingest took {one:.1f} µs of CPU with one "
        f"partition and {many:.1f} with 1,024. The bound is the rate of one partition, for which a producer "
        "would wait until it has 1 MB for each of them, and hold 1 GB."
    )


def _delivery(run: Run, part: str, names: Sequence[str]) -> str:
    ours = run.one(part, "delivery, our consumer")
    service = ours.service_us_per_event
    client = ours.cpu_us_per_event - service
    peers = {
        name: run.one(part, f"delivery, {name}").events_per_s
        for name in ("NATS", "Redis", "Kafka")
        if f"delivery, {name}" in ours.baselines
    }
    best = ", ".join(f"{1e6 / client / rate:.2f} × {name}" for name, rate in peers.items())
    alone = ", ".join(f"{1e6 / service / rate:.1f} × {name}" for name, rate in peers.items())
    return (
        f"the consumer is the limit, with {client:.1f} µs of CPU an event, "
        f"{ours.client_cpu_s / ours.wall_s:.0%} of a core, beside {service:.1f} in the service. If the "
        f"service cost nothing, {best} would be the most. Profile of the consumer: 24 % making an object of "
        "each event, 14 % its body, 23 % the loop that looks at them and frees them, 20 % frames, 14 % the "
        "socket; NATS' and Redis' clients here only count marks in a stream of bytes, and Kafka's events "
        f"have no headers. The service alone could deliver {alone}: the bound for a client without objects."
    )


def _host_sqlite(run: Run, part: str, names: Sequence[str]) -> str:
    return (
        f"{_bound_of_host(run, part, 'SQLite', 'SQLite executemany')} Profile of the Pipeline: 34 % the "
        "event loop's thread (22 % making events, 4 % frames); in the transactions' threads 33 % the "
        "function, 20 % commits, 11 % handling and SQLAlchemy. Of executemany in a handler, 40 % are "
        "SQLAlchemy's work on each dictionary. More needs several processes, and SQLite has one writer."
    )


def _host_copy(run: Run, part: str, names: Sequence[str]) -> str:
    return (
        f"{_bound_of_host(run, part, 'PostgreSQL', 'PostgreSQL COPY')} Profile of the Pipeline: 36 % the "
        "event loop's thread (13 % making events, 10 % frames), 38 % the function, 13 % commits, 12 % "
        "SQLAlchemy and the driver. More needs several processes."
    )


def _bound_of_host(run: Run, part: str, kind: str, bulk_load: str) -> str:
    host, bulk = run.one(part, f"host, Pipeline → {kind}"), run.one(part, bulk_load)
    client = host.cpu_us_per_event - host.service_us_per_event
    function = _IN_USERS_FUNCTION[kind] * client
    both = function + bulk.cpu_us_per_event
    return (
        f"a host is one interpreter whose threads take turns, with {client:.1f} µs an event (Pipeline), and "
        f"{bulk_load} of ready tuples takes {bulk.cpu_us_per_event:.1f}. The bound: a Pipeline's function, "
        f"which reads properties, and {bulk_load} alone are {both:.1f} µs on that lock, "
        f"{1e6 / both / bulk.events_per_s:.2f} of {bulk_load}."
    )


def _host_postgresql(run: Run, part: str, names: Sequence[str]) -> str:
    host = run.one(part, "host, executemany → PostgreSQL")
    bulk = run.one(part, "PostgreSQL executemany")
    client = host.cpu_us_per_event - host.service_us_per_event
    return (
        f"executemany in a handler costs {client:.0f} µs an event in one interpreter, where executemany of "
        f"ready tuples takes {bulk.cpu_us_per_event:.0f}. Profile: 61 % SQLAlchemy and 15 % the driver, "
        "which take each row's dictionary by itself, 13 % the user's function, 7 % the event loop's thread. "
        f"If all but these two cost nothing, it would be {1e6 / (0.76 * client) / bulk.events_per_s:.2f}. "
        "The other design is `context.insert`, which copies: 2.7 and 3.0 × this in two runs of its commit."
    )


def _small_sends(run: Run, part: str, names: Sequence[str]) -> str:
    link, connection, connections = (
        run.figure(part, f"{who}, one event a send: user CPU").value
        for who in (
            "64 senders, one link",
            "64 senders, one connection",
            "64 senders, 64 connections",
        )
    )
    return (
        "a lone send shares nothing, and it sleeps. Of 64 senders that keep the service awake, one costs "
        f"{connections:.0f} µs on a connection of its own, {connection:.0f} on a common one and {link:.0f} "
        "on a common link, where many have one write to the journal and one answer. Alone, both threads "
        "wait for socket and disk, with 5 to 8 switches a send (0.2 to 0.4 with 64): in a profile 454 to "
        "597 µs, on a RAM disk 363 to 478, and 274 to 331 there beside idle loops that keep the cores "
        "awake. Profile of 64 on a link: 28 % the journal's thread, 20 % the link, 19 % appending, 11 % "
        "AMQP, 8 % turns, 6 % the socket. If all but appending and journal cost nothing, "
        f"{_IN_APPENDS * link:.0f} µs would be left: so these targets need compiled code."
    )


def _start(run: Run, part: str, names: Sequence[str]) -> str:
    starts = {each.what: each.value for each in run.parts[part].figures if each.what.startswith("start")}
    return (
        f"{'; '.join(f'{what} {value:.2f} s' for what, value in starts.items())} in this run, and a start "
        "after kill -9 has more to do, so what lies between the two is the machine. Of either, imports and "
        "the start of Python are 0.40 to 0.46 s (three runs, from bytecode files): the bound."
    )


def _idle_tls(run: Run, part: str, names: Sequence[str]) -> str:
    plain = next(
        each.value for each in run.parts[part].figures if each.what.endswith("idle plain connections")
    )
    return (
        f"OpenSSL alone takes {_SESSION_KB} KB for each: the bound. A plain connection takes {plain:.1f}: "
        "together more than 50. Few take less, in memory that is left from the start."
    )


def _keyed(run: Run, part: str, names: Sequence[str]) -> str:
    calls = _CORES / _CPU_MS_PER_KEYED_CALL * 1e3
    return (
        "with the default, a partition's events leave its producer every 5 ms (`linger_ms`, while an "
        "acknowledgement is missing), after 2.5 ms on average, so 2 ms is out of reach. In a profile with 4 "
        "partitions, 15 events were a batch, which then took 1.7 ms of CPU, one process after the other "
        "(producer 0.6, service 0.8, host 0.3): 4.2 ms at best. Of 256 partitions, each gets 39 events a "
        "second, and at 2 ms nearly every event is a batch of its own. One with one or two events took "
        f"{_CPU_MS_PER_KEYED_CALL:.2f} ms of CPU of all three, so {_CORES} cores handle {calls:,.0f} of "
        "10,000 a second; events gather in batches (20 in the profile) and queue. The bound is 0.2 ms a "
        "batch, of all three. Another design would be transfers with events of many keys, which AMQP "
        "clients of Event Hubs do not have."
    )


def _spark_read(run: Run, part: str, names: Sequence[str]) -> str:
    kafka = sorted(each.events_per_s for each in run.parts[part].baselines if each.name == KAFKA_READ)
    bounds = []
    for name in names:
        ours = run.one(part, name)
        spark = ours.cpu_us_per_event - ours.service_us_per_event
        ratio = ours.baselines[KAFKA_READ]
        most = ratio * ours.cpu_us_per_event / spark
        bounds.append(f"{name} {most:.2f} ({spark:.1f} of {ours.cpu_us_per_event:.1f} µs)")
    return (
        f"Kafka's reads, between ours, made {kafka[0]:,.0f} to {kafka[-1]:,.0f} events/s, and a ratio moves "
        "as much. Both cores are busy, so if the service cost nothing, these would be the most (in "
        f"brackets the CPU of Spark, and of both, for an event): {'; '.join(bounds)}."
    )


def _keyed_state(run: Run, part: str, names: Sequence[str]) -> str:
    gathered, state, sql, hand = (
        run.one(part, name).events_per_s
        for name in (
            "home security, gathered",
            "home security, keyed state",
            "home security → PostgreSQL",
            "windows by hand → PostgreSQL",
        )
    )
    return (
        "the target of keyed state is what it reached, by hand, on a quiet machine. Of "
        f"{1e8 / state:,.0f} ms for 100,000 events, reading, parsing and sorting without any state take "
        f"{1e8 / gathered:,.0f} (*gathered*), so state takes {1e8 / state - 1e8 / gathered:,.0f}: "
        f"if it cost nothing, {gathered:,.0f} events/s would be the most. Windows by hand, with Spark's own "
        f"state in Java and no hub, made {hand:,.0f} into PostgreSQL in this run, and ours {sql:,.0f}."
    )


def _home_latency(run: Run, part: str, names: Sequence[str]) -> str:
    sql, hand = (
        run.one(part, name).events_per_s
        for name in ("home security → PostgreSQL", "windows by hand → PostgreSQL")
    )
    return (
        "an event waits for the micro-batch that runs and then for its own, 1.5 of them on average, so 1 s "
        f"needs micro-batches of 0.67 s. One of 100,000 events takes {1e8 / sql:,.0f} ms here (windows by "
        f"hand, with Spark's own state and no hub, {1e8 / hand:,.0f}). They take longer beside the generator "
        "(as much CPU an event as the pipeline), and small ones are not much shorter: in a profile "
        "at 8,000 events/s 1.1 s with 297 events, 1.9 s with 10,103 and 3.9 s with 33,600. About half is "
        "state, because every micro-batch hands all 32 blocks of homes to Python and back, one by one. The "
        "bound is 1.5 empty micro-batches, which were 0.5 s each there."
    )


def _micro_batch(run: Run, part: str, names: Sequence[str]) -> str:
    slow, fast, hand = (
        run.figure(part, f"Spark → PostgreSQL, {which}")
        for which in (
            "1,000 events/s: a micro-batch",
            "20,000 events/s: a micro-batch",
            "1,000 events/s: p50",
        )
    )
    assert slow.at_most is not None
    assert hand.at_most is not None
    floor = slow.at_most - 50
    return (
        f"a micro-batch that reads and writes nothing takes {floor:.0f} ms in this run: the bound, if all of "
        f"ours cost nothing. Ours adds {slow.value - floor:.0f} ms at 1,000 events/s and "
        f"{fast.value - floor:.0f} at 20,000, where publisher and service share the cores. Profile, by "
        "Spark's own times at both rates: 80 and 92 % its tasks (reading the hub, the function, COPY, a "
        "commit that syncs; 58 % in the empty one), 5 % asking the hub for its ends, 12 and 7 % Spark's "
        "files of offsets and commits. The pipeline by hand, which reads no hub, has a p50 of "
        f"{hand.at_most:.0f} ms, ours {hand.value:.0f}."
    )


def _latency(run: Run, part: str, names: Sequence[str]) -> str:
    waits = []
    for name in names:
        rate = name.split(":")[0]
        figure, batch = run.figure(part, name), run.figure(part, f"{rate}: a micro-batch").value
        assert figure.at_most is not None
        share = figure.value / batch
        waits.append(
            f"{name} is {share:.1f} micro-batches, so its target needs {figure.at_most / share:.0f} ms"
        )
    return (
        "an event waits for the micro-batch that runs and then for its own, whose bound is above: "
        f"{'; '.join(waits)}."
    )


def _sqlite_by_event(run: Run, part: str, names: Sequence[str]) -> str:
    ours = run.one(part, "exactly-once → SQLite")
    columns = run.one(part, "exactly-once, Arrow function → SQLite")
    bulk = sorted(
        each.events_per_s for each in run.parts[part].baselines if each.name == "SQLite executemany"
    )
    ratios = [each.baselines["SQLite executemany"] for each in (ours, columns)]
    return (
        f"{ratios[0]:.3f} of {EXACTLY_ONCE_RATIO:g}, where the same executemany made {bulk[0]:,.0f} and "
        f"{bulk[-1]:,.0f} rows/s within this run. A Python function called for each event costs "
        f"{ours.cpu_us_per_event:.1f} µs of CPU a row, an Arrow function for a batch "
        f"{columns.cpu_us_per_event:.1f}: that is the bound, {ratios[1]:.2f}, and the other design."
    )


REASONS: Final = (
    Reason("log|shapes|peers|spark", r".*; [\d,]+ events/s", _rates),
    Reason("spark", f"Spark read .*; {KAFKA_READ}", _spark_read),
    Reason("shapes", "ingest, TLS; .*", _tls_ingest),
    Reason("shapes", ".*, 1,024 partitions; .*, 1 partition", _partitions),
    Reason("peers", "ingest, our producer; ingest, NATS", _ingest),
    Reason("peers", "delivery, our consumer; delivery, .*", _delivery),
    Reason("processor", "host, .* → SQLite; SQLite executemany", _host_sqlite),
    Reason("processor", "host, .* → PostgreSQL; PostgreSQL COPY", _host_copy),
    Reason("processor", "host, executemany → PostgreSQL; PostgreSQL executemany", _host_postgresql),
    Reason("small-sends", ".*: user CPU", _small_sends),
    Reason("footprint", "start after .*", _start),
    Reason("footprint", "each of .* idle TLS connections", _idle_tls),
    Reason("keyed", "publish → handler, .*", _keyed),
    Reason(
        "spark-state",
        r"home security(, keyed state; [\d,]+ events/s| → PostgreSQL; windows by hand → PostgreSQL)",
        _keyed_state,
    ),
    Reason("spark-state", "home security: p50", _home_latency),
    Reason("spark-latency", ".*: a micro-batch", _micro_batch),
    Reason("spark-latency", ".*: p(50|99)", _latency),
    Reason("spark", "exactly-once → SQLite; SQLite executemany", _sqlite_by_event),
)
