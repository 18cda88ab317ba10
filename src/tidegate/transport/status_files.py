"""The status of pipelines on this machine: a directory per name, with a file that is replaced atomically.

    <state directory>/pipelines/<name>/status.json     current or last status; see ``model.pipeline_status``
                                       checkpoint/     Spark's, by default
                                       spark.log       Spark's output since its last start
                                       lock            held by the process that runs it

This module is in a low layer because both sides use it without importing each other: pipelines write;
commands and the console read. A status outlives its process, so readers check whether the process still runs,
by its number and start time: numbers are reused. Only the user who runs a pipeline may read its files: an
error may quote an event.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tidegate.files import lock_file, make_private_directory, replace_file, user_directory
from tidegate.model.errors import DirectoryInUseError, InvalidArgumentError, NotFoundError, TidegateError
from tidegate.model.pipeline_status import PipelineStatus, ProcessIdentity

_STATUS_NAME = "status.json"
_PS_TIMEOUT_S = 5.0


class ForeignPipelineError(TidegateError):
    """A pipeline runs on another machine or as another user, and cannot be stopped from here."""


class PipelineFiles:
    """The pipelines of a state directory."""

    def __init__(self, state_dir: Path) -> None:
        self.root = state_dir / "pipelines"

    @classmethod
    def of_user(cls, environment: Mapping[str, str]) -> PipelineFiles:
        """The pipelines in ``TIDEGATE_STATE_DIR``, else in the XDG state directory."""
        return cls(user_directory(environment, "TIDEGATE_STATE_DIR", "XDG_STATE_HOME", ".local/state"))

    def log_file(self, name: str) -> Path:
        """Where Spark's output is written."""
        return self.root / name / "spark.log"

    def delete_log(self, name: str) -> None:
        """Delete the log of earlier runs. Raises OSError.

        Call it before the first status of a run is written: who may see the run may see the log, and the
        name may have been used for another event hub. What is left of an earlier run keeps writing into the
        deleted file.
        """
        self.log_file(name).unlink(missing_ok=True)

    def checkpoint_dir(self, name: str) -> Path:
        """Where Spark stores a pipeline's checkpoint by default."""
        return self.root / name / "checkpoint"

    @contextmanager
    def owned(self, name: str) -> Iterator[None]:
        """Hold the lock of the one process on this machine that runs the pipeline. Ends with the process.

        Raises DirectoryInUseError if another process holds it.
        """
        directory = self.root / name
        make_private_directory(directory)
        descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                lock_file(descriptor)
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
        """Replace a pipeline's status atomically. Raises OSError."""
        directory = self.root / status.name
        make_private_directory(directory)
        replace_file(directory / _STATUS_NAME, f"{status.to_json()}\n".encode())

    def read(self, name: str) -> PipelineStatus:
        """A pipeline's current status: ``killed`` if its process ended without reporting it.

        Raises NotFoundError if it never ran here, InvalidArgumentError for a damaged file.
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
        """All pipelines that ever ran here, by name, without damaged files."""
        found: list[PipelineStatus] = []
        for name in self.names():
            try:
                found.append(self.read(name))
            except (NotFoundError, InvalidArgumentError):
                continue  # a damaged file must not hide the others
        return found

    def names(self) -> list[str]:
        """Sorted names of pipelines that ever ran here, with damaged files or not. Raises OSError."""
        return sorted(path.parent.name for path in self.root.glob(f"*/{_STATUS_NAME}"))


def ask_to_stop(found: PipelineStatus) -> bool:
    """Send a running pipeline the signal to stop gracefully, without waiting; False: it has already ended.

    Raises ForeignPipelineError if it cannot be reached from here.
    """
    process = found.process
    is_found = is_there(process)
    if is_found is None:
        raise ForeignPipelineError(
            f"The pipeline {found.name} runs on {process.host}.", next_step="Stop it there."
        )
    if not is_found:
        return False  # another process may have the number now
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
    """Whether a process still runs; None if it is on another machine."""
    if process.host != socket.gethostname():
        return None
    start = process_start(process.pid)
    return start is not None and (not process.started or start == process.started)


def process_start(pid: int) -> str | None:
    """The operating system's start time of a process on this machine; None if it does not exist.

    A process that has ended but was not waited for (a zombie) does not count.
    """
    if Path("/proc/self/stat").exists():
        try:
            text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        # The command's name is in parentheses and may contain anything; after it: state, then field 22,
        # "starttime" in ticks since boot (proc(5)).
        words = text[text.rindex(")") + 2 :].split()
        return None if words[0] in "ZX" else f"{_boot()}:{words[19]}"
    found = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)],
        capture_output=True, text=True, timeout=_PS_TIMEOUT_S, check=False,
    )  # fmt: skip
    return found.stdout.strip() or None


def _boot() -> str:
    """Identifies this boot of the machine: ticks since boot are meaningless without it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
