"""``tidegate pipeline``: the group of commands for pipelines that run on Spark."""

from __future__ import annotations

from tidegate.cli.pipelines.replay import replay
from tidegate.cli.pipelines.run import run
from tidegate.cli.pipelines.status import status, stop
from tidegate.cli.shell.contents import CommandGroup

pipeline_group = CommandGroup("pipeline", help="Run and monitor pipelines on Spark.")

for _command in (run, replay, status, stop):
    pipeline_group.add_command(_command)
