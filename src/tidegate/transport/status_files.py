"""The status of pipelines on this machine: one directory per name, one file that is replaced atomically.

    <state directory>/pipelines/<name>/status.json     how it is, or was; see ``model.pipeline_status``
                                       checkpoint/     Spark's, where nothing else was said
                                       spark.log       Spark's own words since its last start
                                       lock            held by the process that runs it

It stands this low because both sides use it: a pipeline writes, and commands and the console read, which
must not know each other. A status outlives its process, so a reader asks whether that is still there, by its
number and its start: numbers are given again.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tidegate.model.errors import DirectoryInUseError, InvalidArgumentError, NotFoundError, TidegateError
from tidegate.model.pipeline_status import PipelineStatus, ProcessIdentity

_STATUS_NAME = "status.json"
_PS_TIMEOUT_S = 5.0


class ForeignPipelineError(TidegateError):
    """A pipeline that runs on another machine, or for another user, and cannot be stopped from here."""


class PipelineFiles:
    """The pipelines of a state directory."""

    def __init__(self, state_dir: Path) -> None:
        self.root = state_dir / "pipelines"

    @classmethod
    def of_user(cls, environment: Mapping[str, str]) -> PipelineFiles:
        """Those in ``TIDEGATE_STATE_DIR``, else in the XDG state directory."""
        own = environment.get("TIDEGATE_STATE_DIR")
        if own:
            return cls(Path(own))
        base = environment.get("XDG_STATE_HOME")
        return cls((Path(base) if base else Path.home() / ".local" / "state") / "tidegate")

    def log_file(self, name: str) -> Path:
        """Where Spark's own words go."""
        return self.root / name / "spark.log"

    def checkpoint_dir(self, name: str) -> Path:
        """Where Spark's checkpoint of a pipeline is stored by default."""
        return self.root / name / "checkpoint"

    @contextmanager
    def owned(self, name: str) -> Iterator[None]:
        """Be the one process of this machine that runs the pipeline; ends with the process at the latest.

        Raises DirectoryInUseError where another one runs it.
        """
        directory = self.root / name
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DirectoryInUseError(
                    f"The pipeline {name} runs already{self._whereabouts(name)}.",
                    next_step=f"Stop that one first: tidegate pipeline stop {name}",
                ) from None
            yield
        finally:
            os.close(descriptor)

    def _whereabouts(self, name: str) -> str:
        try:
            return f", as process {self.read(name).process.pid}"
        except (NotFoundError, InvalidArgumentError):
            return ""

    def write(self, status: PipelineStatus) -> None:
        """Replace a pipeline's status; a reader sees the old one or the new one. Raises OSError."""
        directory = self.root / status.name
        directory.mkdir(parents=True, exist_ok=True)
        temporary = directory / f".{_STATUS_NAME}.{os.getpid()}"
        temporary.write_text(status.to_json() + "\n", encoding="utf-8")
        os.replace(temporary, directory / _STATUS_NAME)

    def read(self, name: str) -> PipelineStatus:
        """How a pipeline is, as true now: ``killed`` where its process ended without reporting it.

        Raises NotFoundError where none of that name ever ran here, InvalidArgumentError for a damaged file.
        """
        path = self.root / name / _STATUS_NAME
        try:
            text = path.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            names = ", ".join(self.names())
            raise NotFoundError(
                f"No pipeline named {name!r} has run on this machine.",
                next_step=f"Those that have: {names}." if names else f"None has, says {self.root}.",
            ) from None
        except UnicodeDecodeError as error:
            raise InvalidArgumentError(f"{path}: Not valid UTF-8.", next_step="Delete it.") from error
        try:
            status = PipelineStatus.from_json(text)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{path}: {error.message}", next_step="Delete it.") from error
        return status.seen_by_reader(is_process_there=is_there(status.process))

    def read_all(self) -> list[PipelineStatus]:
        """All pipelines that ever ran here, by name; damaged files are left out."""
        found: list[PipelineStatus] = []
        for name in self.names():
            try:
                found.append(self.read(name))
            except (NotFoundError, InvalidArgumentError):
                continue  # one bad file must not hide the others
        return found

    def names(self) -> list[str]:
        """Pipelines that ever ran here, in order, including those with a damaged file. Raises OSError."""
        return sorted(path.parent.name for path in self.root.glob(f"*/{_STATUS_NAME}"))


def ask_to_stop(found: PipelineStatus) -> bool:
    """Send a running pipeline the signal to stop in order; False: it is gone already. Waits for nothing.

    Raises ForeignPipelineError where it cannot be reached from here.
    """
    process = found.process
    is_found = is_there(process)
    if is_found is None:
        raise ForeignPipelineError(
            f"The pipeline {found.name} runs on {process.host}.", next_step="Stop it there."
        )
    if not is_found:
        return False  # the number may be another process's by now
    try:
        os.kill(process.pid, signal.SIGTERM)
    except ProcessLookupError:
        return False
    except PermissionError as error:
        raise ForeignPipelineError(
            f"The pipeline {found.name} is process {process.pid}, which belongs to another user.",
            next_step="Stop it as that user.",
        ) from error
    return True


def this_process() -> ProcessIdentity:
    """The identity of the calling process."""
    return ProcessIdentity(socket.gethostname(), os.getpid(), process_start(os.getpid()) or "")


def is_there(process: ProcessIdentity) -> bool | None:
    """Whether a process still runs; None where it is one of another machine."""
    if process.host != socket.gethostname():
        return None
    start = process_start(process.pid)
    return start is not None and (not process.started or start == process.started)


def process_start(pid: int) -> str | None:
    """When a process of this machine started, in the operating system's words; None: there is none.

    A process that has ended and waits for its parent to notice (a zombie) counts as gone.
    """
    if Path("/proc/self/stat").exists():
        try:
            text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        # The command's name stands in parentheses and may hold anything; after it: state, then field 22,
        # "starttime" in ticks since boot (proc(5)).
        words = text[text.rindex(")") + 2 :].split()
        return None if words[0] in "ZX" else f"{_boot()}:{words[19]}"
    found = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)],
        capture_output=True, text=True, timeout=_PS_TIMEOUT_S, check=False,
    )  # fmt: skip
    return found.stdout.strip() or None


def _boot() -> str:
    """Which boot of the machine this is: ticks since boot mean nothing without it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
