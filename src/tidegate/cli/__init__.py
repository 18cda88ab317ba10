"""The command line ``tidegate``: one module per command group, one renderer, documented exit codes.

A command module imports typer and nothing heavier at its top: what a command needs is imported when it runs,
so that ``tidegate --help`` stays quick.
"""

from __future__ import annotations


def main() -> None:
    """Run the command line of this process and leave with its exit code."""
    from tidegate.cli.app import run

    run()
