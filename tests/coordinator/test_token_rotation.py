"""The token of a job is changed while it runs: old and new are both heard meanwhile, and no line is lost."""

import http.client
from pathlib import Path

import pytest
from tests.coordinator.lines import LIMIT, TOKEN, Place, coordinator, greeting, line_to, play, until
from tests.coordinator.test_client_connections import client

from understudy.cli.main import main
from understudy.coordinator.service import Service
from understudy.coordinator.state_store import MemoryStateStore
from understudy.errors import SettingsError
from understudy.files.private import write_private
from understudy.files.rereading import RereadingWatch
from understudy.foundation.ids import HostId
from understudy.wire import host_messages as wire
from understudy.wire.job_tokens import JobTokens
from understudy_testkit.faults.coordinators import CoordinatorProcess, running
from understudy_testkit.faults.operator import TOKEN as OPERATOR
from understudy_testkit.faults.operator import write_tokens

pytestmark = pytest.mark.timeout(LIMIT + 60)
NEXT = "the next token of this very job"


def write(folder: Path, *tokens: str) -> Path:
    write_private(folder / "token", "\n".join([*tokens, ""]).encode())
    return folder / "token"


async def is_heard(place: Place, token: str, host: str) -> bool:
    async with line_to(place, token=token) as agent:
        await agent.say(greeting(host))
        return await agent.ended_or_welcomed() != "UNAUTHENTICATED"


def test_old_and_new_are_heard_until_the_old_one_is_removed(tmp_path: Path) -> None:
    async def story() -> None:
        tokens = JobTokens.read(write(tmp_path, TOKEN))
        service = Service("job", tokens)
        place = Place(service, await service.open("127.0.0.1:0", None), MemoryStateStore())
        await place.lead()
        try:
            async with line_to(place) as before:
                await before.say(greeting())
                await before.hear(wire.Welcome)
                assert not await is_heard(place, NEXT, "b")
                for lines in ((TOKEN, NEXT), (NEXT, TOKEN)):
                    write(tmp_path, *lines)
                    assert tokens.read_again()
                    for token in (TOKEN, NEXT):
                        assert await is_heard(place, token, "b")
                write(tmp_path, NEXT)
                assert tokens.read_again() and not tokens.read_again()
                assert await is_heard(place, NEXT, "b") and not await is_heard(place, TOKEN, "b")
                await before.say(wire.Farewell(reason="lines that are open stay"))
                await before.ended()
                assert service.refused == {"unauthorised": 2}
        finally:
            await place.state_store.close()
            await service.close()

    play(story)


def test_an_agent_takes_the_first_token_of_its_file_for_its_next_line(tmp_path: Path) -> None:
    async def story() -> None:
        own = JobTokens.read(write(tmp_path, TOKEN))
        async with coordinator() as place, client([place.address], token=own) as (agent, effects):
            await until(lambda: agent.connected, "a line with the old one")
            write(tmp_path, NEXT, TOKEN)
            assert own.read_again()
            place.service._tokens = JobTokens((NEXT,))
            before = place.leading.lines.lines[HostId("a")]
            before.close()
            await until(lambda: place.leading.lines.lines.get(HostId("a"), before) is not before, "one with the next")
            assert not effects.stopped and not place.service.refused

    play(story)


@pytest.mark.parametrize(
    ("lines", "why"), [((), "16 characters"), ((TOKEN, "short"), "16 characters"), ((TOKEN, TOKEN), "each once")]
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, lines: tuple[str, ...], why: str) -> None:
    with pytest.raises(
        SettingsError, match=rf"--token-file {tmp_path}/token.*{why}|{why}.*--token-file {tmp_path}/token"
    ):
        JobTokens.read(write(tmp_path, *lines))


def test_a_new_file_that_others_may_read_is_warned_of_once_and_the_old_token_stays(tmp_path: Path) -> None:
    tokens = JobTokens.read(write(tmp_path, TOKEN))
    said, warned = list[str](), list[str]()
    watch = RereadingWatch(tokens, said.append, warned.append)
    write(tmp_path, NEXT).chmod(0o644)
    for _ in range(4):
        watch.read()
        watch.tell()
    (warning,) = warned
    assert f"--token-file {tmp_path}/token: its mode is 0644" in warning and "chmod 600" in warning
    assert "stay in use" in warning and NEXT not in warning and tokens.own == TOKEN and not said
    (tmp_path / "token").chmod(0o600)
    watch.read()
    watch.tell()
    assert tokens.own == NEXT and "are new ones; new lines use them" in said[0]


def test_a_token_of_the_environment_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UNDERSTUDY_JOB_TOKEN", "short")
    assert main(["coordinator", "--run-dir", str(tmp_path / "run")]) == 2
    assert not JobTokens((TOKEN,)).read_again()


@pytest.mark.timeout(180)
def test_a_coordinator_takes_new_tokens_without_a_restart(tmp_path: Path) -> None:
    api = write_tokens(tmp_path / "api")
    with running(tmp_path, "c", TOKEN, "--http-tokens", str(api), "--log-format", "json") as process:
        process.find(r"(leading), term 1", 60.0)
        place = Place(Service("job", TOKEN), int(process.address.rpartition(":")[2]), MemoryStateStore())
        write(tmp_path, TOKEN, NEXT)
        write_private(api, b'[[token]]\nname = "on-call"\nroles = ["act"]\ntoken = "another-token-for-people"\n')
        process.find(r"(the tokens in --token-file \S+ are new ones)", 60.0)
        process.find(r"(the tokens in --http-tokens \S+ are new ones)", 60.0)

        async def story() -> None:
            assert await is_heard(place, NEXT, "a") and await is_heard(place, TOKEN, "b")

        play(story)
        assert [_asked(process, token) for token in ("another-token-for-people", OPERATOR)] == [200, 401]
        assert process.process.poll() is None


def _asked(process: CoordinatorProcess, token: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", process.http_port, timeout=10.0)
    connection.request("GET", "/v1/job", headers={"Authorization": f"Bearer {token}"})
    return connection.getresponse().status
