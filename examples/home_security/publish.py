"""Sends the generator's events, at its pace, as a process of its own.

    python -m examples.home_security.publish --homes 100000 --speed 10 … --status-file FILE

The connection string is an environment variable, because every user of the machine can read command lines.
SIGTERM ends it in order: all generated events are sent and acknowledged.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

from examples.home_security.generator import STEP_S, GeneratorPlan, HomesGenerator
from examples.home_security.homes import EVENT_HUB
from examples.home_security.status import write_status
from examples.support.screen import visible
from examples.support.service import CONNECTION_STRING_VARIABLE
from tidegate import EventData, TidegateError
from tidegate.client import EventHubProducer

_STATUS_EVERY_S = 0.25


@dataclass(frozen=True, slots=True)
class Publishing:
    """How to send the generator's events."""

    connection_string: str
    plan: GeneratorPlan
    duration_s: float
    """Seconds of generated events to send."""
    is_paced: bool = True
    """False: as fast as possible."""


async def publish(
    wanted: Publishing, on_progress: Callable[[HomesGenerator, float], None], stop: asyncio.Event
) -> HomesGenerator:
    """Send every event of the plan's first ``duration_s`` seconds; returns the generator.

    on_progress: called regularly, and at the end when everything is acknowledged, with the seconds since the
    start. stop: once set, no more events are generated. Raises what the producer raises.
    """
    generator = HomesGenerator(wanted.plan)
    loop = asyncio.get_running_loop()
    async with EventHubProducer.from_connection_string(wanted.connection_string, EVENT_HUB) as producer:
        started = told = time.monotonic()
        for step in range(max(1, round(wanted.duration_s / STEP_S))):
            if wanted.is_paced:
                await asyncio.sleep(max(0.0, started + step * STEP_S - time.monotonic()))
            if stop.is_set():
                break
            # In a thread, so that the event loop can send meanwhile.
            made = await loop.run_in_executor(None, generator.step)
            await producer.enqueue_many(
                [EventData(body) for _, body in made], partition_keys=[home for home, _ in made]
            )
            if time.monotonic() - told > _STATUS_EVERY_S:
                told = time.monotonic()
                on_progress(generator, told - started)
        await producer.flush()
        on_progress(generator, time.monotonic() - started)
    return generator


def main() -> int:
    """Send; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--status-file", type=Path, required=True)
    parser.add_argument("--duration", type=float, required=True)
    parser.add_argument("--unpaced", action="store_true")
    for name in ("homes", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("speed", "co-after", "malformed-share", "delayed-share", "duplicate-share"):
        parser.add_argument(f"--{name}", type=float, required=True)
    parser.add_argument("--rate", type=float)
    given = parser.parse_args()
    plan = GeneratorPlan(
        **{field.name: getattr(given, field.name.removesuffix("_s")) for field in fields(GeneratorPlan)}
    )
    wanted = Publishing(
        os.environ[CONNECTION_STRING_VARIABLE], plan, given.duration, is_paced=not given.unpaced
    )

    def tell(generator: HomesGenerator, elapsed_s: float) -> None:
        write_status(
            given.status_file,
            {**generator.counts, "elapsed_s": elapsed_s, "time_ms": generator.time_ms},
        )

    async def run() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await publish(wanted, tell, stop)

    try:
        asyncio.run(run())
    except TidegateError as error:
        sys.stderr.write(visible(f"{error}\n"))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
