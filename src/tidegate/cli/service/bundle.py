"""``tidegate doctor --bundle``: one archive with what a report of a problem needs.

Two rules keep secrets out. Keys, connection strings and sessions are not collected; and everything else is
written through ``Redaction``, which also knows the secrets that this machine's files and variables hold.
"""

from __future__ import annotations

import io
import os
import platform
import sys
import zipfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidegate.cli.service.answers import address_of, get
from tidegate.cli.service.check import check_directory, damage_records, summary
from tidegate.cli.service.redaction import Redaction, secrets_in, secrets_of_environment
from tidegate.cli.shell.connection import Service
from tidegate.cli.shell.render import Record, counted, json_text
from tidegate.files import replace_file
from tidegate.model import VERSION
from tidegate.model.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError, TidegateError
from tidegate.transport.clock import SystemClock

if TYPE_CHECKING:
    from tidegate.broker.catalog import CatalogContents
    from tidegate.client import EventHubAdministrator
    from tidegate.server.ready import ReadyInformation

LOG_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of each log, its end (our choice: some 50,000 lines)."""
_LINES_MAX: Final = 50_000
"""Of a log on standard input, its end."""
STANDARD_INPUT: Final = "-"

_SHOWN_VARIABLES: Final = ("CONFIG", "CONFIG_DIR", "EPHEMERAL", "LOG_FORMAT", "PROFILE", "STATE_DIR", "TIER")
"""Variables without a secret, besides those of settings; of all others, only the names are collected."""
_KEYS: Final = frozenset({"key", "keys", "primary_key", "secondary_key"})
"""Fields of policies that hold keys."""


@dataclass(frozen=True, slots=True)
class Sources:
    """What the options and this user's profile name."""

    service: Service
    profile: ReadyInformation | None
    data_dir: Path | None
    config: Path | None
    logs: Sequence[Path]
    database: str | None


def check_target(path: Path, *, is_replaced: bool) -> None:
    """Raise InvalidArgumentError or AlreadyExistsError if the bundle cannot be written there."""
    if path.suffix != ".zip":
        raise InvalidArgumentError("A bundle is a ZIP archive.", next_step=f"Name it {path.stem}.zip.")
    if not path.absolute().parent.is_dir():
        raise NotFoundError(f"There is no directory {path.absolute().parent}.")
    if path.exists() and not is_replaced:
        raise AlreadyExistsError(f"{path} exists already.", next_step="Name another file, or add --force.")


def write_bundle(path: Path, sources: Sources, checks: Sequence[Record]) -> str:
    """Collect what can be found, write it to a file that only this user may read, and say what is missing.

    checks: what the other checks found. Raises InvalidArgumentError if the file cannot be written.
    """
    redaction = Redaction(_known_secrets(sources))
    files: dict[str, str] = {}
    missing: list[dict[str, str]] = []
    for name, collect in _parts(sources, checks):
        try:
            found = collect()
        except TidegateError as error:
            missing.append({"file": name, "reason": error.message, "advice": error.next_step or ""})
        except (OSError, ValueError, ImportError) as error:  # the service's packages may not be installed
            # Of a file: what is wrong with it, without its number.
            reason = str(getattr(error, "reason", None) or getattr(error, "strerror", None) or error)
            missing.append({"file": name, "reason": reason, "advice": ""})
        else:
            if isinstance(found, str):
                files[name] = redaction.text(found)
            else:
                files[name] = _json(redaction.value(_plain(found)))
    missing = [{name: redaction.text(text) for name, text in each.items()} for each in missing]
    manifest = {
        "made_at": SystemClock().now_utc(),
        "tidegate": VERSION,
        "files": sorted(files),
        "missing": missing,
    }
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", _json(manifest))
        for name, text in files.items():
            archive.writestr(name, text.encode(errors="replace"))
    try:
        replace_file(path, content.getvalue())
    except OSError as error:
        raise InvalidArgumentError(
            f"Cannot write {path}: {error.strerror or error}.",
            next_step="Choose a file in a directory that you can write to.",
        ) from error
    count = counted(len(files), "file")
    lines = [f"Wrote {path} with {count}, readable only by you. Look at it before you send it."]
    lines += [f"Missing: {each['file']}: {each['reason']} {each['advice']}".rstrip() for each in missing]
    return "\n".join(lines)


def _parts(sources: Sources, checks: Sequence[Record]) -> Iterator[tuple[str, Callable[[], object]]]:
    yield "versions.json", _versions
    yield "checks.json", lambda: list(checks)
    yield "settings/environment.json", _environment
    yield "settings/serve.json", lambda: _settings(sources.config)
    yield "service/addresses.json", partial(_addresses, sources.profile)
    yield "service/health.json", partial(_endpoint, sources.profile, "/health")
    yield "service/metrics.txt", partial(_endpoint, sources.profile, "/metrics")
    yield "service/namespace.json", partial(_namespace, sources.service)
    directory = sources.data_dir
    yield "data/files.json", partial(_files, directory)
    yield "data/check.json", partial(_check, directory)
    yield "data/catalog.json", partial(_catalog, directory)
    for log in () if directory is None else sorted(directory.glob("*.jsonl")):
        yield f"data/{log.name}", partial(_end_of, log)
    yield from _pipelines()
    if not sources.logs:
        yield "logs", _no_log
    for number, log in enumerate(sources.logs, start=1):
        name = "standard-input" if str(log) == STANDARD_INPUT else log.name
        yield f"logs/{number}-{name}", partial(_end_of, log)


def _known_secrets(sources: Sources) -> Iterator[str]:
    """Of this process's variables and options, the profile, the settings and the catalog."""
    yield from secrets_of_environment(os.environ)
    strings = [sources.database]
    with suppress(TidegateError, OSError):
        strings.append(sources.service.connection().connection_string)
    if (profile := sources.profile) is not None:
        strings += [profile.connection_string, profile.connection_string_plain]
    with suppress(TidegateError, OSError, ImportError):
        from tidegate.cli.service.serve import read_settings

        settings = read_settings(sources.config, {})
        strings += settings.all_databases
        hubs = settings.declared.event_hubs
        declared = (*settings.declared.policies, *(each for hub in hubs for each in hub.policies))
        yield from (key for key in (settings.root_key, *(each.key for each in declared)) if key)
    with suppress(TidegateError, OSError, ImportError):
        contents = _read_catalog(_required(sources.data_dir))
        kept = (
            *contents.namespace.policies,
            *(p for hub in contents.event_hubs.values() for p in hub.policies),
        )
        yield from (key for each in kept for key in each.keys)
    yield from (secret for text in strings if text for secret in secrets_in(text))


def _versions() -> object:
    names = {each.name: each.version for each in metadata.distributions()}
    return {
        "tidegate": VERSION,
        "python": sys.version,
        "platform": platform.platform(),
        "packages": dict(sorted(names.items())),
    }


def _environment() -> object:
    from tidegate.model.validation import NOT_GIVEN
    from tidegate.server.settings import VARIABLE_PREFIX, ServerSettings

    settings = (each.name for each in fields(ServerSettings) if each.repr and each.metadata != NOT_GIVEN)
    shown = {VARIABLE_PREFIX + name.upper() for name in (*settings, *_SHOWN_VARIABLES)}
    return {
        name: value if name in shown else "(set)"
        for name, value in sorted(os.environ.items())
        if name.startswith(VARIABLE_PREFIX)
    }


def _settings(config: Path | None) -> object:
    """As ``tidegate serve`` would read them here: the file, and variables over it."""
    from tidegate.cli.service.serve import read_settings

    settings = read_settings(config, {})
    hidden = {each.name for each in fields(settings) if not each.repr}
    values = {each.name: getattr(settings, each.name) for each in fields(settings)}
    return {name: "(set)" if value and name in hidden else value for name, value in values.items()}


def _addresses(profile: ReadyInformation | None) -> object:
    found = _known(profile)
    return {each.name: getattr(found, each.name) for each in fields(found) if each.repr}


def _endpoint(profile: ReadyInformation | None, path: str) -> object:
    found = _known(profile)
    address = address_of(found, path)
    if address is None:
        raise NotFoundError("The service has no port for HTTP.")
    return get(address, found)[0].decode(errors="replace")


def _namespace(service: Service) -> object:
    async def look(administrator: EventHubAdministrator) -> object:
        return {
            "tier": await administrator.get_tier(),
            "throughput": await administrator.get_throughput(),
            "event_hubs": await administrator.list_event_hubs(),
            "policies": await administrator.list_policies(),
        }

    return service.administer(look)


def _files(data_dir: Path | None) -> object:
    directory = _required(data_dir)
    found: dict[str, int] = {}
    for path in sorted(directory.rglob("*")):
        with suppress(FileNotFoundError):  # a service removes some meanwhile
            if path.is_file():
                found[str(path.relative_to(directory))] = path.stat().st_size
    return found


def _check(data_dir: Path | None) -> object:
    report, catalog = check_directory(_required(data_dir), is_shown=True)
    return {
        "is_sound": report.is_sound and catalog.is_sound,
        "summary": summary(report, catalog),
        "damages": damage_records(report, catalog),
    }


def _catalog(data_dir: Path | None) -> object:
    from tidegate.storage.files import OsFiles
    from tidegate.storage.log_manager import LOCK_NAME

    directory = _required(data_dir)
    if not (directory / LOCK_NAME).exists():
        raise NotFoundError(f"No service has started in {directory} yet.")
    lock = OsFiles().lock(directory / LOCK_NAME)  # a running service describes itself
    try:
        return _read_catalog(directory)
    finally:
        lock.release()


def _read_catalog(directory: Path) -> CatalogContents:
    from tidegate.broker.catalog import parse_catalog
    from tidegate.storage.control.reading import read_files
    from tidegate.storage.files import OsFiles

    found = read_files(OsFiles(), directory, is_used=True)
    return parse_catalog(found.best().cells, str)


def _pipelines() -> Iterator[tuple[str, Callable[[], object]]]:
    from tidegate.transport.status_files import PipelineFiles

    pipelines = PipelineFiles.of_user(os.environ)
    for name in pipelines.names():
        for path in sorted(each for each in (pipelines.root / name).glob("*.*") if each.is_file()):
            yield f"pipelines/{name}/{path.name}", partial(_end_of, path)


def _no_log() -> object:
    raise NotFoundError(
        "No log was given: the service writes its own to standard error.",
        next_step="Add --log FILE, or e.g. journalctl -u tidegate | tidegate doctor --bundle FILE --log -",
    )


def _end_of(path: Path) -> str:
    """The last lines, each of them whole."""
    if str(path) == STANDARD_INPUT:
        return b"".join(deque(sys.stdin.buffer, maxlen=_LINES_MAX)).decode(errors="replace")
    with path.open("rb") as file:
        start = max(0, file.seek(0, os.SEEK_END) - LOG_BYTES_MAX)
        file.seek(start)
        if start:
            file.readline()
        return file.read().decode(errors="replace")


def _known(profile: ReadyInformation | None) -> ReadyInformation:
    if profile is None:
        raise NotFoundError(
            "No service of this user is known.", next_step="Start one, or run this as the service's user."
        )
    return profile


def _required(data_dir: Path | None) -> Path:
    if data_dir is None:
        raise NotFoundError("No data directory is named.", next_step="Give --data-dir.")
    if not data_dir.is_dir():
        raise NotFoundError(f"There is no directory {data_dir}.")
    return data_dir


def _json(value: object) -> str:
    return json_text(value, is_indented=True) + "\n"


def _plain(value: object) -> object:
    """Plain values without the fields that hold keys."""
    import msgspec

    return _without_keys(msgspec.to_builtins(value, enc_hook=str))


def _without_keys(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(name): _without_keys(each) for name, each in value.items() if name not in _KEYS}
    return [_without_keys(each) for each in value] if isinstance(value, list | tuple) else value
