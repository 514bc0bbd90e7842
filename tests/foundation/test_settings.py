import pytest

from understudy.errors import SettingsError
from understudy.foundation.clock import SetClock, SystemClock
from understudy.foundation.ids import MemberId
from understudy.foundation.settings import FORMER_NAMES, PlainSettings, WorkerSettings

SETTINGS = WorkerSettings(
    socket="/run/agent",
    member=MemberId("m-7"),
    token="secret",
    run_dir="/runs/one",
    progress_file="/run/m-7.progress",
    store_host="127.0.0.1",
    store_port=29500,
    ledger_digest_every=5,
    ledger_digests="xxh3",
)
NEW = "UNDERSTUDY_LEDGER_DIGESTS"


def test_an_agent_of_the_previous_version_does_not_say_how_digests_are_taken() -> None:
    environment = SETTINGS.to_environment()
    del environment[NEW]
    settings = WorkerSettings.from_environment(environment)
    assert settings is not None and settings.ledger_digests == "auto"


def test_what_the_agent_writes_is_what_a_worker_reads() -> None:
    assert WorkerSettings.from_environment({"PATH": "/bin", **SETTINGS.to_environment()}) == SETTINGS


def test_a_process_that_was_not_started_by_us_has_no_settings() -> None:
    assert WorkerSettings.from_environment({"PATH": "/bin"}) is None


@pytest.mark.parametrize("missing", sorted(set(SETTINGS.to_environment()) - {"UNDERSTUDY_SOCKET", NEW}))
def test_a_missing_variable_is_named(missing: str) -> None:
    environment = SETTINGS.to_environment()
    del environment[missing]
    with pytest.raises(SettingsError, match=missing):
        WorkerSettings.from_environment(environment)


@pytest.mark.parametrize("name", ["UNDERSTUDY_STORE_PORT", "UNDERSTUDY_LEDGER_DIGEST_EVERY"])
def test_a_variable_that_is_no_number_is_named(name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name}.*many"):
        WorkerSettings.from_environment(SETTINGS.to_environment() | {name: "many"})


@pytest.mark.parametrize(("former", "name"), FORMER_NAMES.items())
def test_a_former_name_is_read_with_a_notice(former: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    environment = SETTINGS.to_environment()
    environment[former] = environment.pop(name)
    assert WorkerSettings.from_environment(environment) == SETTINGS
    assert f"{former} is now called {name}" in capsys.readouterr().err


def test_the_variables_of_torchrun() -> None:
    launched = PlainSettings.from_environment({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8"})
    assert launched == PlainSettings(rank=3, local_rank=1, world_size=8, launched=True)
    assert PlainSettings.from_environment({}) == PlainSettings(rank=0, local_rank=0, world_size=1, launched=False)
    assert not PlainSettings.from_environment({"RANK": "3"}).launched


def test_a_torchrun_variable_that_is_no_number_is_named() -> None:
    with pytest.raises(SettingsError, match="RANK"):
        PlainSettings.from_environment({"RANK": "first", "WORLD_SIZE": "8"})


def test_time_goes_forward() -> None:
    assert SystemClock().now() <= SystemClock().now()
    clock = SetClock(5.0)
    clock.advance_to(7.5)
    assert clock.now() == 7.5
    with pytest.raises(ValueError, match="cannot go back"):
        clock.advance_to(7.0)
