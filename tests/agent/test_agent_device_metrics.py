"""Fetching the counters: it works, or it does no harm."""

import asyncio
import time

import pytest

from understudy.agent import device_metrics
from understudy.agent.device_metrics import DeviceMetrics
from understudy_testkit.faults.fake_exporter import FakeExporter

TEMP = "DCGM_FI_DEV_GPU_TEMP"


def test_fetching_losing_and_finding_it_again() -> None:
    said: list[str] = []
    with FakeExporter({0: {TEMP: 40.0}}) as exporter:
        metrics = DeviceMetrics(exporter.url, said.append)
        asyncio.run(metrics.fetch_once())
        assert [device.numbers for device in metrics.devices] == [{TEMP: 40.0}] and said == []
        exporter.status = 500
        asyncio.run(metrics.fetch_once())
        asyncio.run(metrics.fetch_once())
        assert metrics.devices == () and len(said) == 1 and "500" in said[0]
        exporter.status = 200
        asyncio.run(metrics.fetch_once())
        assert len(metrics.devices) == 1 and "again: 1 devices" in said[1]
    asyncio.run(metrics.fetch_once())
    assert metrics.devices == () and "no device metrics" in said[2]


def test_a_silent_exporter_costs_a_moment_of_a_thread_and_nothing_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_metrics, "_TIMEOUT", 0.2)
    said: list[str] = []

    async def scene(url: str) -> float:
        fetching = asyncio.create_task(DeviceMetrics(url, said.append).fetch_once())
        longest, last = 0.0, time.monotonic()
        while not fetching.done():
            await asyncio.sleep(0.005)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        return longest

    with FakeExporter({}) as exporter:
        exporter.silent = True
        assert asyncio.run(scene(exporter.url)) < 0.15
    assert len(said) == 1
