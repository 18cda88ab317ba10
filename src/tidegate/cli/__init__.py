"""The command line ``tidegate``: one module per command group, one renderer, documented exit codes.

A command module imports click and nothing heavier at its top: other imports are done when a command runs, so
that ``tidegate --help`` stays fast.
"""

from __future__ import annotations


def main() -> None:
    """Run the command line of this process and leave with its exit code."""
    from tidegate.cli.shell.imports import collections_paused

    with collections_paused():
        from tidegate.cli.app import run

    run()
