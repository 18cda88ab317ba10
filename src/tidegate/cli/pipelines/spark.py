"""``tidegate spark``: what a Spark cluster needs to run Tidegate."""

from __future__ import annotations

from pathlib import Path

import click

from tidegate.cli.shell.contents import CommandGroup
from tidegate.cli.shell.decorators import FILE, flag, option
from tidegate.cli.shell.render import remark

spark_group = CommandGroup("spark", help="Package pipelines for a Spark cluster.")


@spark_group.command()
@click.argument(
    "files",
    nargs=-1,
    type=FILE,
    metavar="[FILE.py]...",
    help="The program for spark-submit, followed by the modules and packages that it imports.",
)
@option("--output", "DIR", "Directory to write the package to.", FILE, default=Path("dist"))
@flag(
    "--environment",
    "Also pack the Python packages that executors need, as installed here. Without it, they must be "
    "installed on the executors.",
)
@option("--master", "URL", "The cluster's master, for the spark-submit command.", default="spark://HOST:7077")
@option(
    "--python",
    "NAME",
    "Name of the Python command on the executors and the driver. Default: this Python's python3.N.",
)
def package(
    files: tuple[Path, ...], output: Path, environment: bool, master: str, python: str | None
) -> None:
    """Build the package that a pipeline's executors need.

    Prints the package's path to standard output, and its contents and the spark-submit command to use next to
    standard error.

    Examples:
      tidegate spark package flights_pipeline.py --master spark://spark.example.org:7077
      tidegate spark package flights_pipeline.py --environment --output build
    """
    from tidegate.spark.runtime.package import build_package
    from tidegate.spark.runtime.session import PYTHON_NAME

    made = build_package(files, output, is_environment_included=environment)
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
    click.echo(made.path)
    remark("\n".join(lines))
