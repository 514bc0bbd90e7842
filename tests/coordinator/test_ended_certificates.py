"""A host whose certificate has ended: it cannot connect, says why, and connects when it has a new one."""

from pathlib import Path

import pytest
from tests.coordinator.lines import LIMIT, TOKEN, coordinator, play, until

from understudy.wire.certificates import Certificates
from understudy.wire.issuing import make_authority, make_set
from understudy_testkit.faults.light_hosts import LightHost, Meeting

pytestmark = pytest.mark.timeout(LIMIT + 10)


def test_a_host_says_that_its_certificate_has_ended_and_comes_with_a_new_one(tmp_path: Path) -> None:
    authority = make_authority()
    make_set(tmp_path, ["boss"], authority=authority)
    make_set(tmp_path, ["a"], authority=authority, days=-1e-3)

    async def story() -> None:
        certificates = Certificates.read(tmp_path / "a")
        async with coordinator(certificates=tmp_path / "boss") as place:
            meeting = Meeting(address=place.address, token=TOKEN, world=2, certificates=certificates)
            host = LightHost("a", 1, 0, meeting, {})
            host.client.start()
            try:
                await until(lambda: bool(host.said), "a reason")
                reason = host.said[0]
                assert f"no coordinator at {place.address}: the certificate has ended: " in reason
                assert f"{tmp_path}/a/cert.pem (on 20" in reason and "ca.pem" not in reason
                assert not host.client.connected and place.leading.coordinator is None
                make_set(tmp_path, ["a"], authority=authority)
                certificates.read_again()
                await until(lambda: host.client.connected, "the host to come back")
            finally:
                await host.client.close("the test ends")

    play(story)
