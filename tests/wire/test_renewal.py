"""Certificates that end, and certificates that are renewed while a process uses them."""

import asyncio
import shutil
import time
from pathlib import Path

import pytest

from understudy.cli.main import main
from understudy.errors import SettingsError
from understudy.wire.certificates import Certificates
from understudy.wire.issuing import make_set
from understudy.wire.renewal import RenewalWatch, watched
from understudy.wire.roles import PartyRole

DAY = 86400.0


def party(folder: Path, days: int = 30) -> Certificates:
    make_set(folder, ["host1"], days=days)
    return Certificates.read(folder / "host1", PartyRole.AGENT)


class Watch(RenewalWatch):
    """By hand: `said` is what was said, `now` the time of day."""

    def __init__(self, certificates: Certificates) -> None:
        self.said: list[str] = []
        self.now = time.time()
        super().__init__(certificates, self.said.append, wall=lambda: self.now)

    def look(self) -> list[str]:
        before = len(self.said)
        self.read()
        self.tell()
        self.look_at_the_clock()
        return self.said[before:]


def test_when_they_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ends = party(tmp_path / "set", days=3).ends()
    assert sorted(ends) == ["ca.pem", "cert.pem"]
    assert all(abs(end - time.time() - 3 * DAY) < 60 for end in ends.values())
    day = time.strftime("%Y-%m-%d", time.gmtime(ends["cert.pem"]))
    assert main(["certs", str(tmp_path / "set")]) == 0
    assert f"{tmp_path / 'set' / 'host1'}: for host1 (agent, api-client, coordinator), until {day}" in (
        capsys.readouterr().out
    )
    assert main(["certs", str(tmp_path / "new"), "a", "b", "--coordinator", "a", "--days", "3"]) == 0
    told = capsys.readouterr().out
    assert f"for a (coordinator), until {day}" in told and f"for b (agent), until {day}" in told
    assert main(["certs", str(tmp_path / "empty")]) == 2


def test_of_several_authorities_the_last_one_counts_and_of_a_chain_the_first(tmp_path: Path) -> None:
    short, long = party(tmp_path / "short", days=3), party(tmp_path / "long", days=30)
    folder = tmp_path / "long" / "host1"
    (folder / "ca.pem").write_bytes(short.authority + long.authority)
    (folder / "cert.pem").write_bytes(long.certificate + short.certificate)
    ends = Certificates.read(folder).ends()
    assert ends == {"ca.pem": long.ends()["ca.pem"], "cert.pem": short.ends()["cert.pem"]}


def test_the_end_is_announced_a_week_before_and_once_a_day(tmp_path: Path) -> None:
    watch = Watch(party(tmp_path / "my set", days=30))
    assert watch.look() == []
    watch.now += 24 * DAY
    own, authority = watch.look()
    assert f"{tmp_path}/my set/host1/cert.pem ends in 6 days (" in own and "host1/ca.pem" in authority
    assert f"understudy certs '{tmp_path}/my set' host1 ..." in own
    watch.now += DAY / 2
    assert watch.look() == []
    watch.now += DAY / 2
    assert len(watch.look()) == 2
    watch.now += 5.5 * DAY
    assert "ended 12 hours ago" in watch.look()[0]
    make_set(tmp_path / "my set", ["host1"], days=90)
    (renewed,) = watch.look()
    assert "are new ones" in renewed
    assert watch.look() == []


def test_what_cannot_be_used_is_said_once_and_what_was_read_before_is_used(tmp_path: Path) -> None:
    certificates = party(tmp_path)
    before, watch = certificates.present, Watch(certificates)
    make_set(tmp_path / "other", ["host1"])
    shutil.copy(tmp_path / "other" / "host1" / "cert.pem", tmp_path / "host1" / "cert.pem")
    assert watch.look() == []  # it may be just being replaced
    (said,) = watch.look()
    assert "cert.pem and key.pem cannot be used together" in said and "stay in use" in said
    assert watch.look() == [] and certificates.present is before
    (tmp_path / "host1" / "key.pem").unlink()
    assert watch.look() == []
    assert "No such file" in watch.look()[0]
    for name in ("ca.pem", "cert.pem", "key.pem"):
        shutil.copy(tmp_path / "other" / "host1" / name, tmp_path / "host1" / name)
    (said,) = watch.look()
    assert "are new ones" in said and certificates.authority == (tmp_path / "other" / "ca.pem").read_bytes()


@pytest.mark.parametrize("name", ["ca.pem", "cert.pem", "key.pem"])
def test_files_that_are_none_are_named_at_the_start(tmp_path: Path, name: str) -> None:
    make_set(tmp_path, ["host1"])
    (tmp_path / "host1" / name).write_bytes(b"something else\n")
    with pytest.raises(SettingsError, match=name):
        Certificates.read(tmp_path / "host1")


def test_the_loop_warns_at_once_and_finds_new_ones_by_itself(tmp_path: Path) -> None:
    certificates = party(tmp_path, days=2)
    said: list[str] = []

    async def story() -> None:
        watch = RenewalWatch(certificates, said.append, look_every=0.01)
        with watch.looking():
            assert len(said) == 2
            make_set(tmp_path, ["host1"])
            while len(said) < 3:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(story(), 20.0))
    assert "are new ones" in said[2] and certificates.ends()["cert.pem"] > time.time() + 20 * DAY


def test_a_job_is_watched_while_it_runs(tmp_path: Path) -> None:
    said: list[str] = []

    async def job() -> int:
        return 7

    assert asyncio.run(watched(job(), [party(tmp_path, days=2), None], said.append)) == 7
    assert len(said) == 2 and "host1/cert.pem" in said[0]
    assert asyncio.run(watched(job(), [], said.append)) == 7
