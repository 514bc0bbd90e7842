"""The end of a job waits for a monitor that scrapes it, and for nobody else."""

import asyncio
import time
from pathlib import Path

import httpx
from tests.api.stage import Stage
from tests.ledger.made_up import WrittenAtOnce

from understudy.api import last_scrape
from understudy.api.last_scrape import Scrapes
from understudy.api.setup import ApiRequest, serving
from understudy.foundation.clock import SetClock, SystemClock
from understudy.ledger.writing import RecordLog


def scraped(*times: float, finished: bool = False) -> tuple[SetClock, Scrapes]:
    clock = SetClock()
    scrapes = Scrapes(clock)
    for moment in times:
        clock.advance_to(moment)
        scrapes.seen(finished)
    return clock, scrapes


def test_nobody_waits_for_a_scrape_that_is_not_to_be_expected() -> None:
    assert scraped()[1].seconds_to_wait() == 0.0
    assert scraped(5.0)[1].seconds_to_wait() == 0.0  # somebody looked once
    clock, scrapes = scraped(5.0, 10.0)
    clock.advance_to(60.0)
    assert scrapes.seconds_to_wait() == 0.0  # the monitor is gone
    assert scraped(5.0, 10.0, finished=True)[1].seconds_to_wait() == 0.0  # it knows already


def test_as_long_as_the_next_one_may_take_and_no_longer() -> None:
    clock, scrapes = scraped(5.0, 10.0)
    assert scrapes.seconds_to_wait() == 7.5
    clock.advance_to(13.0)
    assert scrapes.seconds_to_wait() == 4.5
    assert scraped(0.0, 3600.0)[1].seconds_to_wait() == last_scrape._LONGEST


def test_it_ends_with_the_next_scrape_or_when_the_operator_has_had_enough() -> None:
    async def story() -> None:
        for impatient in (False, True):
            scrapes = Scrapes(SystemClock())
            scrapes.seen(False)
            await asyncio.sleep(0.2)
            scrapes.seen(False)
            scrapes._interval = 1000.0
            asked: list[float] = []

            def enough(asked: list[float] = asked, impatient: bool = impatient) -> bool:
                asked.append(0.0)
                return impatient and len(asked) > 1

            waiting = asyncio.create_task(scrapes.one_more(enough))
            await asyncio.sleep(0.15)
            assert not waiting.done() or impatient
            scrapes.seen(True)
            await asyncio.wait_for(waiting, 5.0)

    asyncio.run(story())


def test_a_real_server_answers_until_the_end_was_scraped(tmp_path: Path) -> None:
    stage, said = Stage(tmp_path), list[str]()
    request = ApiRequest.read("127.0.0.1:0", None, None, None)
    log = RecordLog(WrittenAtOnce(tmp_path / "served.jsonl"))
    shown: list[bool] = []

    async def scrape(url: str, every: float) -> None:
        async with httpx.AsyncClient() as client:
            while True:
                page = (await client.get(f"{url}/metrics")).text
                shown.append('understudy_finished{training_job="job"} 1.0' in page)
                await asyncio.sleep(every)

    async def story() -> None:
        stage.begin()
        async with asyncio.timeout(30.0):
            async with serving(request, stage.interface, tmp_path, said.append, log) as server:
                scraping = asyncio.create_task(scrape(server.url, 2.0))
                while len(shown) < 2:
                    await asyncio.sleep(0.01)
                stage.coordinator.request_stop("the test ends it", 0)
                began = time.monotonic()
            took = time.monotonic() - began
            scraping.cancel()
        assert shown[-1] and not any(shown[:-1]) and took < 10.0
        assert any("to see it" in line for line in said)

    asyncio.run(story())
