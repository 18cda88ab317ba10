"""The console's view of pipelines, without a console: what it keeps of the last minutes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.console.pipeline_process import status_of

from tidegate.broker import AuditTrail
from tidegate.console.pipelines import reported as sampling
from tidegate.console.pipelines.reported import PipelineSample, ReportedPipelines
from tidegate.storage.files import OsFiles
from tidegate.storage.line_file import LineFile
from tidegate.transport.clock import SystemClock
from tidegate.transport.status_files import PipelineFiles

HUB = "orders"


async def test_the_last_minutes_are_kept_whoever_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples come by themselves, those that are old go, and one directory that vanishes stops nothing."""
    monkeypatch.setattr(sampling, "SAMPLE_EVERY_S", 0.01)
    monkeypatch.setattr(sampling, "HISTORY_S", 0.3)
    monkeypatch.setattr(sampling, "_FRESH_S", 0.0)
    files, clock = PipelineFiles(tmp_path), SystemClock()
    status = replace(status_of("kept", HUB), processed_events_per_s=1.0)
    async with ReportedPipelines(
        files, clock, AuditTrail(clock, partial(LineFile, OsFiles(), tmp_path))
    ) as view:
        assert (await view.pipelines()).entries == []
        files.write(status)
        first = await _samples_until(view, 1.0)
        files.write(replace(status, processed_events_per_s=2.0))
        later = await _samples_until(view, 2.0)
        assert [sample.at for sample in later] == sorted(sample.at for sample in later)
        await _samples_until(view, 2.0, after=first[0])


async def _samples_until(
    view: ReportedPipelines, rate: float, *, after: PipelineSample | None = None
) -> list[PipelineSample]:
    """The samples once the last has that rate, and ``after`` is no more among them."""
    async with asyncio.timeout(30):
        while True:
            found = (await view.pipelines()).entries
            samples = list(found[0].history) if found else []
            if samples and samples[-1].processed_events_per_s == rate and after not in samples:
                return samples
            await asyncio.sleep(0.01)
