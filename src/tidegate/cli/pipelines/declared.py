"""Loads the pipeline that a command's argument names."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from tidegate.cli.shell.imports import let_import_beside
from tidegate.extras import install_step
from tidegate.model.errors import NotFoundError

if TYPE_CHECKING:
    from tidegate.spark.pipelines.stream_pipeline import StreamPipeline

pipeline_argument = click.argument(
    "pipeline", metavar="FILE.py:NAME", help="The pipeline: path/to/file.py:name or package.module:name."
)


def load_declared_pipeline(address: str) -> StreamPipeline:
    """The declaration at an address, which may be a plain ``Pipeline``. Raises InvalidArgumentError."""
    from tidegate.processor.declared import load_declared
    from tidegate.spark.pipelines.stream_pipeline import StreamPipeline, declared_pipeline
    from tidegate.sql.handlers.pipeline import Pipeline, TransactionalPipeline

    let_import_beside(address)
    found = load_declared(address, (StreamPipeline, Pipeline, TransactionalPipeline), noun="pipeline")
    assert isinstance(found, StreamPipeline | Pipeline | TransactionalPipeline)
    return declared_pipeline(found)


def require_spark() -> None:
    """Raises NotFoundError if Spark is not installed."""
    for package in ("pyspark", "pyarrow"):
        if find_spec(package) is None:
            raise NotFoundError(
                f"This command requires the package {package}, which is not installed.",
                next_step=install_step("spark"),
            )
