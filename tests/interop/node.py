"""Runs Azure's official JavaScript SDK: a Node.js process that does what a test says, and answers in JSON."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Final

from tests.support.absent import not_tested

FOLDER: Final = Path(__file__).parent / "javascript"
WAIT_S: Final = 60.0
"""Longest wait for an answer; reached only when a test fails."""


class JavaScriptError(Exception):
    """What the SDK threw, or reported to an error handler."""

    def __init__(self, said: Mapping[str, Any]) -> None:
        super().__init__(f"{said.get('name')} {said.get('code')}: {said.get('message')}")
        self.code: str | None = said.get("code")
        """The SDK's own name of the error, such as ``ReceiverDisconnectedError``."""


class JavaScript:
    """The driver's process; requests may come from several threads and run side by side."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            ["node", "driver.mjs"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            cwd=FOLDER,
            env=os.environ | environment,
        )
        self._ids = count()
        self._lock = threading.Lock()
        self._answers: dict[int, Future[Any]] = {}
        self._reader = threading.Thread(target=self._read, name="javascript")
        self._reader.start()

    def do(self, operation: str, **request: Any) -> Any:
        """The result of one operation of ``driver.mjs``. Raises JavaScriptError with what the SDK threw."""
        future: Future[Any] = Future()
        assert self._process.stdin is not None
        with self._lock:
            request_id = next(self._ids)
            self._answers[request_id] = future
            line = json.dumps({"id": request_id, "do": operation, **request}, default=_bytes_to_json)
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        return future.result(WAIT_S)

    def close(self) -> None:
        """End the process; it ends by itself once its input does."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(WAIT_S)
        finally:
            self._process.kill()
            self._reader.join(WAIT_S)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._stderr.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line, object_hook=_bytes_from_json)
            with self._lock:
                future = self._answers.pop(said["id"])
            if "error" in said:
                future.set_exception(JavaScriptError(said["error"]))
            else:
                future.set_result(said["result"])
        self._stderr.seek(0)
        end = RuntimeError(f"Node.js ended. It wrote: {self._stderr.read().decode(errors='replace')[-2000:]}")
        with self._lock:
            for future in self._answers.values():
                future.set_exception(end)


class JavaScriptSdk:
    """The SDK on one way to the service."""

    def __init__(
        self,
        process: JavaScript,
        connection_string: str,
        *,
        is_websocket: bool = False,
        retries_max: int = 1,
        retry_delay_s: float = 0.05,
    ) -> None:
        self._process = process
        self._names = count()
        self.connection_string = connection_string
        """How the SDK finds the service."""
        self._target = {
            "connectionString": connection_string,
            "webSocket": is_websocket,
            "maxRetries": retries_max,
            "retryDelayInMs": round(retry_delay_s * 1000),
        }

    def send(self, hub: str, events: Sequence[Mapping[str, Any]], how: str = "list", **options: str) -> Any:
        """Send ``events``. how: as ``list``, as ``batch`` made with createBatch, or ``one by one``."""
        return self._do("send", hub=hub, events=events, how=how, options=options)

    def send_buffered(
        self, hub: str, events: Sequence[Mapping[str, Any]], *, is_idempotent: bool = False, **options: str
    ) -> Any:
        """Send through EventHubBufferedProducerClient: ``succeeded`` and ``errors``, once all is sent."""
        return self._do(
            "sendBuffered", hub=hub, events=events, options=options, enableIdempotentRetries=is_idempotent
        )

    def properties(self, hub: str, partition_id: str = "0") -> Any:
        """What getEventHubProperties and getPartitionProperties say, as ``hub`` and ``partition``."""
        return self._do("properties", hub=hub, partitionId=partition_id)

    @contextmanager
    def subscribed(
        self,
        hub: str,
        partition_id: str | None = "0",
        *,
        position: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Iterator[Subscription]:
        """A subscription to one partition, or with None to all. position: as the SDK's startPosition."""
        name = f"{hub}-{id(self)}-{next(self._names)}"
        options = more.pop("options", {}) | {"startPosition": position or {"offset": "-1"}}
        request = {"name": name, "hub": hub, "options": options, **more}
        if partition_id is not None:
            request["partitionId"] = partition_id
        self._do("subscribe", **request)
        try:
            yield Subscription(self._process, name)
        finally:
            self._process.do("unsubscribe", name=name)

    def read(self, hub: str, number: int, partition_id: str = "0", **more: Any) -> list[dict[str, Any]]:
        """The first ``number`` events (and what came with them) of one partition."""
        with self.subscribed(hub, partition_id, **more) as subscription:
            return subscription.wait_events(number)

    def _do(self, operation: str, **request: Any) -> Any:
        return self._process.do(operation, **self._target, **request)


class Subscription:
    """What one subscription of the SDK received."""

    def __init__(self, process: JavaScript, name: str) -> None:
        self._process = process
        self._name = name
        self.last_enqueued: dict[str, Any] | None = None
        """The runtime metrics that came with the last events, where they were asked for."""

    def wait_events(self, number: int) -> list[dict[str, Any]]:
        """All events so far, once there are ``number``. Raises JavaScriptError if one comes first."""
        result = self._process.do("waitEvents", name=self._name, count=number)
        self.last_enqueued = result.get("lastEnqueued")
        events: list[dict[str, Any]] = result["events"]
        return events

    def received(self) -> list[dict[str, Any]]:
        """The events so far."""
        return self.wait_events(0)

    def wait_error(self) -> JavaScriptError:
        """The first error that the SDK reported."""
        return JavaScriptError(self._process.do("waitError", name=self._name))


@contextmanager
def required_javascript(environment: Mapping[str, str]) -> Iterator[JavaScript]:
    """The body of a session fixture: the process, or a loud skip where the SDK is not installed.

    With ``CI=true`` in the environment the tests fail instead: a build machine must have it.
    """
    if shutil.which("node") is None or not (FOLDER / "node_modules" / "@azure" / "event-hubs").exists():
        not_tested("NOT TESTED WITH THE JAVASCRIPT SDK: install Node.js and run `make npm`.")
    process = JavaScript(environment)
    try:
        yield process
    finally:
        process.close()


def _bytes_to_json(value: object) -> dict[str, str]:
    if not isinstance(value, bytes):
        raise TypeError(f"{type(value).__name__} is nothing for JSON")
    return {"$bytes": base64.b64encode(value).decode()}


def _bytes_from_json(value: dict[str, Any]) -> Any:
    return base64.b64decode(value["$bytes"]) if set(value) == {"$bytes"} else value
