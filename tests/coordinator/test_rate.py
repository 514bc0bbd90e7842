"""A host that speaks too fast is read later; one that tells everything again after a connection is not."""

import msgspec
from tests.coordinator.lines import attending, coordinator, play, until

from understudy.coordinator.rate import LineRate
from understudy.foundation.clock import SetClock
from understudy.foundation.token_bucket import Rate
from understudy.wire import host_messages as wire


def test_a_burst_is_taken_and_then_it_is_so_many_a_second() -> None:
    clock = SetClock(0.0)
    rate = LineRate(clock, Rate(burst=50.0, per_second=100.0))
    assert [rate.spend(0) for _ in range(50)] == [0.0] * 50
    waits = [rate.spend(0) for _ in range(10)]
    assert waits[0] > 0 and waits[-1] == 0.1
    clock.advance_to(0.2)
    assert rate.spend(0) == 0.0


def test_a_long_message_counts_for_several() -> None:
    rate = LineRate(SetClock(0.0), Rate(burst=50.0, per_second=100.0))
    assert rate.spend(5 * 1024 * 1024) > 0.3


def test_a_flood_from_one_host_does_not_keep_others_waiting() -> None:
    async def story() -> None:
        async with coordinator() as place, attending(place, "a"), attending(place, "b") as quiet:
            place.service.make_rate = lambda: LineRate(place.service.clock, Rate(burst=5.0, per_second=50.0))
            async with attending(place, "c", ranks=0) as flood:
                for _ in range(200):
                    await flood.stream.write(msgspec.msgpack.encode({"type": "Temperature"}))
                await quiet.say(wire.Advanced(smallest=7, largest=7))
                dropped = place.leading.lines.dropped
                await until(lambda: dropped["unknown message"] > 0, "the flood to be read")
                assert dropped["unknown message"] < 150 and place.service.slowed > 0
                assert {"a", "b", "c"} <= set(place.leading.lines.lines)

    play(story)
