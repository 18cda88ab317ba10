"""``tidegate host run``: a user's Event Processor Host, in one process or several, until it is stopped."""

from __future__ import annotations

import logging
import sys

import click

from tidegate.cli.shell.contents import CommandGroup
from tidegate.cli.shell.decorators import option
from tidegate.cli.shell.imports import let_import_beside
from tidegate.cli.shell.interrupt import run_interruptible
from tidegate.cli.shell.options import COUNT, PORT, log_format_option
from tidegate.files import IS_WINDOWS
from tidegate.model.errors import InvalidArgumentError
from tidegate.server.log_format import LogFormat

host_group = CommandGroup("host", help="Run Event Processor Hosts.")


@host_group.command()
@click.argument("host", metavar="FILE.py:NAME", help="The host: path/to/file.py:name or package.module:name.")
@option(
    "--processes",
    "N",
    "Run N hosts, each in a process of its own. One that ends unexpectedly is started again.",
    COUNT,
)
@option(
    "--restarts",
    "N",
    "With --processes: how often each process may be restarted within 10 minutes; then all end.",
    click.IntRange(min=0),
    default=5,
)
@option("--metrics-port", "N", "Port to serve Prometheus metrics of all hosts on; 0: any free port.", PORT)
@option("--metrics-host", "ADDRESS", "Address to serve metrics on.", default="127.0.0.1")
@log_format_option("Format of the log on standard error.")
def run(
    host: str,
    processes: int | None,
    restarts: int,
    metrics_port: int | None,
    metrics_host: str,
    log_format: str,
) -> None:
    """Run an Event Processor Host defined in a Python file.

    It runs until Ctrl-C or SIGTERM, which end it in order: running calls finish, checkpoints are written, and
    leases are released to other hosts; the exit code is 0.

    NAME is a tidegate.EventProcessorHost with a handler (handler=…) in that file, or a function without
    arguments that returns one. With --processes, each process loads the file, and the host's name gets the
    process's number, so that no two hosts have the same name. The log on standard error says which partitions
    come and go, and how many events are processed.

    Examples:
      tidegate host run orders.py:host
      tidegate host run orders.py:host --processes 4 --metrics-port 9465
    """
    from contextlib import ExitStack
    from functools import partial

    from tidegate.cli.hosts.metrics import HostCollector
    from tidegate.cli.hosts.process import load_host, run_host
    from tidegate.cli.hosts.report import HostReport
    from tidegate.cli.hosts.supervisor import Supervisor
    from tidegate.cli.shell.metrics_server import metrics_server
    from tidegate.server.log_format import start_logging
    from tidegate.transport.clock import SystemClock

    if IS_WINDOWS and processes is not None:
        raise InvalidArgumentError(
            "--processes is not possible on Windows.", next_step="Start the command several times."
        )
    clock = SystemClock()
    start_logging(LogFormat(log_format), sys.stderr, clock=clock)
    let_import_beside(host)
    if processes is None:
        reports: dict[int, HostReport] = {}
        work = partial(run_host, load_host(host), lambda report: reports.update({1: report}))
        collector = HostCollector(reports)
    else:
        supervisor = Supervisor(
            host, processes, restarts_max=restarts, log_format=LogFormat(log_format), clock=clock
        )
        work = partial(supervisor.run)
        collector = HostCollector(supervisor.reports, lambda: supervisor.restarts)
    with ExitStack() as stack:
        if metrics_port is not None:
            address = stack.enter_context(metrics_server(metrics_host, metrics_port, collector))
            logging.getLogger(__name__).info("Metrics: http://%s/metrics", address)
        run_interruptible(work())
