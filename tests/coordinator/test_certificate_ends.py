"""When the certificate of a host ends is known to whoever leads, also after it was renewed under an open line."""

from pathlib import Path

import msgspec
import pytest
from tests.coordinator.lines import LIMIT, POLICY, TOKEN, coordinator, play, until
from tests.coordinator.test_client_connections import HostEffects

from understudy.agent import coordinator_client as client_module
from understudy.agent.coordinator_client import CoordinatorClient, Introduction
from understudy.coordinator.status import status
from understudy.foundation.clock import SystemClock
from understudy.foundation.ids import HostId
from understudy.wire.certificates import Certificates
from understudy.wire.issuing import make_set
from understudy.wire.roles import PartyRole

pytestmark = pytest.mark.timeout(LIMIT + 10)
A = HostId("a")


def test_an_agent_tells_when_its_certificate_ends_and_again_when_it_is_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_LOOK_AT_CERTIFICATES_EVERY", 0.01)
    make_set(tmp_path, ["boss", "a"], coordinators=["boss"], days=3)
    own, effects = Certificates.read(tmp_path / "a", PartyRole.AGENT), HostEffects()
    introduction = Introduction(
        job="job",
        token=TOKEN,
        host="a",
        ranks=1,
        spares=0,
        place=None,
        settings=msgspec.to_builtins(POLICY),
        store=lambda: "127.0.0.1:1",
        members=list,
    )

    async def story() -> None:
        async with coordinator(certificates=tmp_path / "boss") as place:
            agent = CoordinatorClient(
                introduction,
                effects=effects,
                addresses=[place.address],
                certificates=own,
                clock=SystemClock(),
                tell=effects.tell,
            )
            agent.start()
            told = place.leading.lines.certificate_ends
            try:
                await until(lambda: told() == {A: int(own.ends()["cert.pem"])}, "the end of its certificate")
                make_set(tmp_path, ["boss", "a"], coordinators=["boss"], days=30)
                assert own.read_again()
                await until(lambda: told() == {A: int(min(own.ends().values()))}, "the end of the renewed one")
                assert status(place.service, {})["certificate_ends"] == told() and not place.service.refused
            finally:
                await agent.close("the test ends")

    play(story)
