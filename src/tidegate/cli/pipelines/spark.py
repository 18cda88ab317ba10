"""``tidegate spark``: what a Spark cluster needs to run Tidegate."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

spark_app = typer.Typer(help="Package pipelines for a Spark cluster.", no_args_is_help=True)


@spark_app.callback()
def spark() -> None:
    """Package pipelines for a Spark cluster."""


@spark_app.command("package")
def package(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE.py]...",
            help="The program for spark-submit, followed by the modules and packages that it imports.",
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", metavar="DIR", help="Directory to write the package to.")
    ] = Path("dist"),
    environment: Annotated[
        bool,
        typer.Option(
            "--environment",
            help="Also pack the Python packages that executors need, as installed here. Without it, they "
            "must be installed on the executors.",
        ),
    ] = False,
    master: Annotated[
        str,
        typer.Option("--master", metavar="URL", help="The cluster's master, for the spark-submit command."),
    ] = "spark://HOST:7077",
    python: Annotated[
        str | None,
        typer.Option(
            "--python",
            metavar="NAME",
            help="Name of the Python command on the executors and the driver. Default: this Python's "
            "python3.N.",
        ),
    ] = None,
) -> None:
    """Build the package that a pipeline's executors need.

    Prints the package's path to standard output, and its contents and the spark-submit command to use next to
    standard error.

    \b
    Examples:
      tidegate spark package flights_pipeline.py --master spark://spark.example.org:7077
      tidegate spark package flights_pipeline.py --environment --output build
    """
    from tidegate.spark.runtime.package import build_package
    from tidegate.spark.runtime.session import PYTHON_NAME

    made = build_package(files or [], output, is_environment_included=environment)
    python = python or PYTHON_NAME
    size = f"{made.path.stat().st_size / 1e6:,.1f} MB"
    if made.is_environment:
        lines = [
            f"{size}: Tidegate and {len(made.requirements)} packages. Executors need only {PYTHON_NAME} and "
            "the same kind of system as this machine."
        ]
    else:
        lines = [
            f"{size}: Tidegate for {PYTHON_NAME}. Executors need it with these packages installed (or use "
            "--environment):",
            f"  {' '.join(made.requirements)}",
        ]
    lines += ["Next:", f"  {made.submit_command(master=master, python=python)}"]
    sys.stdout.write(f"{made.path}\n")
    sys.stdout.flush()
    sys.stderr.write("\n".join(lines) + "\n")
