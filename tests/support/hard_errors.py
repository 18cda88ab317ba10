"""What a user's code may raise that no ``except Exception`` catches."""

from __future__ import annotations

import argparse


class PanicError(BaseException):
    """As pyo3_runtime.PanicException, which polars and tokenizers raise."""


def panic() -> None:
    raise PanicError("index out of bounds")


def fail_together() -> None:
    raise BaseExceptionGroup("two tasks", [PanicError("one"), ValueError("other")])


def parse_badly() -> None:
    """Raises argparse's SystemExit."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--speed", type=float)
    parser.parse_args(["--speed", "fast"])
