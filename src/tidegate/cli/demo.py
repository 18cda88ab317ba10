"""``tidegate demo``: the runnable examples, drawn for people or told as one JSON object."""

from __future__ import annotations

import typer

from tidegate.cli.demo_home_security import home_security

demo_app = typer.Typer(help="Run an example, for real.", no_args_is_help=True)
demo_app.command("home-security")(home_security)


@demo_app.callback()
def demo() -> None:
    """Run an example, for real."""
