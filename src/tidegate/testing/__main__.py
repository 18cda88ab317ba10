"""An event hub for tests in any language: ``python -m tidegate.testing``, a child process of the test run.

It starts a service on free ports with a temporary log, and prints one line of JSON with the connection
strings of the namespace and of each event hub. Then it reads commands from standard input, one JSON object
per line, and answers each with one line. It stops at the end of its input, so that it never outlives the
tests.

    {"do": "create", "name": "orders", "partition_count": 2}     {"ok": true, "connection_string": "…"}
    {"do": "delete", "name": "orders"}                           {"ok": true}
    {"do": "cut"}                                                {"ok": true, "connections": 3}

``refuse`` {"is_refused"}, ``hold`` {"is_held"}, ``delay`` {"seconds"}, ``throttle`` {"seconds"},
``steal_epoch`` {"name", "partition_id", "consumer_group"} and ``mend`` are ``Faults``' methods. The answer to
an invalid command is {"ok": false, "error": "…"}.

As a replacement for the official emulator, in tests that contain its addresses and key:

    python -m tidegate.testing --config Config.json --port 5672 --http-port 5300
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from tidegate.model.errors import InvalidArgumentError, TidegateError
from tidegate.testing.event_hub import TestedEventHub, TestedService

Answer = dict[str, object]


def main() -> int:
    """Serve until the input ends; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tidegate.testing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--hub", action="append", default=[], metavar="NAME", help="an event hub to begin with"
    )
    parser.add_argument("--partitions", type=int, default=4, metavar="N", help="partitions of each --hub (4)")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="event hubs from a file: the official emulator's, or ours"
    )
    parser.add_argument(
        "--port", type=int, default=0, metavar="N", help="where clients connect (any free port)"
    )
    parser.add_argument(
        "--http-port", type=int, default=0, metavar="N", help="publishing by REST, /health (any free port)"
    )
    parser.add_argument(
        "--root-key",
        metavar="KEY",
        help="key of RootManageSharedAccessKey (a random one; with the emulator's file the emulator's)",
    )
    arguments = parser.parse_args()
    # As at the end of the input: nothing is left behind if a test run ends its children by a signal.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        with TestedService(
            config=arguments.config,
            root_key=arguments.root_key,
            port=arguments.port,
            http_port=arguments.http_port,
        ) as service:
            commands = Commands(service)
            for name in arguments.hub:
                service.create(name, partition_count=arguments.partitions)
            _print(commands.ready())
            for line in sys.stdin:
                if line.strip():
                    _print(commands.answer_line(line))
    except TidegateError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


class Commands:
    """The commands, each a line in and a line out."""

    def __init__(self, service: TestedService) -> None:
        self._service = service

    def ready(self) -> Answer:
        """The first line."""
        ready = self._service.service.ready
        return {
            "ok": True,
            "connection_string": self._service.connection_string,
            "connection_string_direct": ready.connection_string_plain,
            "http": ready.http,
            "event_hubs": {name: hub.connection_string for name, hub in self._service.event_hubs().items()},
        }

    def answer_line(self, line: str) -> Answer:
        """The answer to a line; an error is part of the answer."""
        try:
            command = json.loads(line)
            if not isinstance(command, dict):
                raise InvalidArgumentError("A command is a JSON object.")
            return self.answer(command)
        except (TidegateError, ValueError, TypeError) as error:
            return {"ok": False, "error": str(error)}

    def answer(self, command: Answer) -> Answer:
        """Run one command. Raises TidegateError; TypeError for invalid arguments."""
        arguments = dict(command)
        name = str(arguments.pop("do", ""))
        known: dict[str, Callable[..., Answer | None]] = {
            "create": self._create,
            "delete": self._delete,
            "steal_epoch": self._steal_epoch,
        }
        any_hub = TestedEventHub("", 0, self._service)
        for fault in ("refuse", "hold", "delay", "throttle", "mend"):
            known[fault] = getattr(any_hub.faults, fault)
        known["cut"] = lambda: {"connections": any_hub.faults.cut()}
        if name not in known:
            raise InvalidArgumentError(
                f"There is no command {name!r}.", next_step=f"Send {', '.join(sorted(known))}."
            )
        return {"ok": True} | (known[name](**arguments) or {})

    def _create(self, name: str | None = None, partition_count: int = 4, **settings: object) -> Answer:
        made = self._service.create(name, partition_count=partition_count, **settings)  # type: ignore[arg-type]
        return {"name": made.name, "connection_string": made.connection_string}

    def _delete(self, name: str) -> None:
        self._service.delete(name)

    def _steal_epoch(self, name: str, partition_id: str, **group: str) -> None:
        TestedEventHub(name, 0, self._service).faults.steal_epoch(partition_id, **group)


def _print(answer: Answer) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
