"""``tidegate pipeline``: the group of commands over pipelines that run on Spark.

Each command is a module of its own (``pipeline_…``), and is given its name here.
"""

from __future__ import annotations

import typer

from tidegate.cli.pipelines.replay import replay
from tidegate.cli.pipelines.run import run
from tidegate.cli.pipelines.status import status, stop

pipeline_app = typer.Typer(help="Run and monitor pipelines on Spark.", no_args_is_help=True)


@pipeline_app.callback()
def pipeline() -> None:
    """Run and monitor pipelines on Spark."""


pipeline_app.command("run")(run)
pipeline_app.command("replay")(replay)
pipeline_app.command("status")(status)
pipeline_app.command("stop")(stop)
