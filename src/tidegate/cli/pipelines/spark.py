"""``tidegate spark``: what a Spark cluster needs to run Tidegate."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

spark_app = typer.Typer(help="Run Tidegate on a Spark cluster.", no_args_is_help=True)


@spark_app.callback()
def spark() -> None:
    """Run Tidegate on a Spark cluster."""


@spark_app.command("package")
def package(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE.py]...",
            help="The program for spark-submit, then the modules and packages that it imports.",
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", metavar="DIR", help="Where the package is written.")
    ] = Path("dist"),
    environment: Annotated[
        bool,
        typer.Option(
            "--environment",
            help="Pack all Python packages that executors need, too, as they are installed here; else "
            "executors have to have them.",
        ),
    ] = False,
    master: Annotated[
        str, typer.Option("--master", metavar="URL", help="The cluster, for the command to use next.")
    ] = "spark://HOST:7077",
    python: Annotated[
        str | None,
        typer.Option(
            "--python",
            metavar="NAME",
            help="The executors' Python, by a name that the driver's machine has, too. Else this one's "
            "python3.N.",
        ),
    ] = None,
) -> None:
    """Write what executors need to run a pipeline, and how to submit it.

    The package's path goes to standard output; what it holds, and the spark-submit command to use next, to
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
            f"{size}: Tidegate and {len(made.requirements)} packages. Executors need {PYTHON_NAME} and this "
            "machine's kind of system, nothing else."
        ]
    else:
        lines = [
            f"{size}: Tidegate for {PYTHON_NAME}. Executors need it with these packages (or use "
            "--environment):",
            f"  {' '.join(made.requirements)}",
        ]
    lines += ["Next:", f"  {made.submit_command(master=master, python=python)}"]
    sys.stdout.write(f"{made.path}\n")
    sys.stdout.flush()
    sys.stderr.write("\n".join(lines) + "\n")
