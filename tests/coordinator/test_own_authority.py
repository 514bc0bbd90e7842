"""Certificates that were not made by us but as docs/hosts.md tells it, with openssl."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.coordinator.lines import LIMIT, coordinator, greeting, line_to, play
from tests.coordinator.test_trust import _client_context, _get

from understudy.coordinator.health import HealthServer
from understudy.wire import host_messages as wire
from understudy.wire.certificates import Certificates
from understudy.wire.roles import PartyRole

pytestmark = [
    pytest.mark.timeout(LIMIT + 60),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl"),
]
DOCUMENT = Path(__file__).parents[2] / "docs" / "hosts.md"
PARTIES = {"host1": PartyRole.AGENT, "boss1": PartyRole.COORDINATOR, "ops": PartyRole.API_CLIENT}


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("authority")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl(folder, "req", "-x509", *key, "-subj", "/CN=ours", "-days", "9", "-keyout", "ca.key", "-out", "ca.pem")
    for party in PARTIES:
        place = folder / party
        place.mkdir()
        told = re.search(rf"```\n(# {party}\.ext.*?)```", DOCUMENT.read_text(), re.DOTALL)
        assert told is not None
        (place / "names.ext").write_text(told[1])
        openssl(place, "req", *key, "-subj", "/O=Somebody/CN=some-name", "-keyout", "key.pem", "-out", "csr")
        signing = ("-CA", "../ca.pem", "-CAkey", "../ca.key", "-CAcreateserial", "-days", "9")
        openssl(place, "x509", "-req", "-in", "csr", *signing, "-extfile", "names.ext", "-out", "cert.pem")
        (place / "key.pem").chmod(0o600)
        shutil.copy(folder / "ca.pem", place / "ca.pem")
    return folder


def test_they_are_taken_in_their_roles(made: Path) -> None:
    read = {party: Certificates.read(made / party, role) for party, role in PARTIES.items()}

    async def story() -> None:
        async with coordinator(certificates=made / "boss1") as place:
            async with line_to(place, certificates=read["host1"]) as agent:
                await agent.say(greeting("host1"))
                await agent.hear(wire.Welcome)
            async with line_to(place, certificates=read["ops"]) as client:
                await client.say(greeting("some-name"))
                assert "not agent" in (await client.hear(wire.Refuse)).reason
        server = HealthServer({"/health": lambda: {"healthy": True}})
        port = await server.open("127.0.0.1:0", read["boss1"])
        assert b"200 OK" in await _get(port, _client_context(made, "ops"))
        assert b"403 Forbidden" in await _get(port, _client_context(made, "host1"))
        await server.close()

    play(story)
