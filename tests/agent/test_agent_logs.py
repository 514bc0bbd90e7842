"""Where output goes."""

import asyncio
import os
from pathlib import Path

import pytest

from understudy.agent.logs import LogPlan, Outlet, Route, Std, parse_std
from understudy.errors import SettingsError

NOWHERE = Path("/nowhere")


def test_the_value_of_redirects_and_tee() -> None:
    assert parse_std("--tee", "3") == Std.ALL
    assert parse_std("--tee", "0:3,12:2") == {0: Std.ALL, 12: Std.ERR}
    for wrong in ("4", "", "0:4", "0:1,", "all"):
        with pytest.raises(SettingsError, match="--tee"):
            parse_std("--tee", wrong)


def test_routes() -> None:
    plan = LogPlan(folder=NOWHERE, redirects={0: Std.OUT}, tee={1: Std.ALL}, only=frozenset({0, 1, 2}))
    assert plan.route(0, Std.OUT) == Route(file=NOWHERE / "0" / "stdout.log", console=False)
    assert plan.route(0, Std.ERR) == Route(file=None, console=True)
    assert plan.route(1, Std.ERR) == Route(file=NOWHERE / "1" / "stderr.log", console=True, prefix=b"[default1]:")
    assert plan.route(3, Std.OUT) == Route(file=None, console=False), "filtered"
    only_zero = LogPlan(folder=NOWHERE, tee=Std.ALL, only=frozenset({0}))
    assert only_zero.route(1, Std.OUT).console is False and only_zero.route(1, Std.OUT).file is not None


def test_a_prefix_template() -> None:
    plan = LogPlan(folder=NOWHERE, tee=Std.ALL, role="r", template="[${role_name} ${rank}/${local_rank}] ")
    assert plan.route(3, Std.OUT).prefix == b"[r 3/3] "


class Shown:
    def __init__(self) -> None:
        self.text = b""

    def __call__(self, _stream: Std, data: bytes) -> None:
        self.text += data


def feed(outlet: Outlet, *parts: bytes) -> None:
    assert outlet.descriptor is not None
    for part in parts:
        os.write(outlet.descriptor, part)
        outlet.drain()


def test_by_default_a_process_has_our_own_streams(tmp_path: Path) -> None:
    outlet = Outlet(LogPlan(folder=tmp_path), Std.OUT, None, Shown())
    assert outlet.descriptor is None


def test_a_teed_stream_is_shown_line_by_line_and_kept(tmp_path: Path) -> None:
    async def scene() -> None:
        shown = Shown()
        outlet = Outlet(LogPlan(folder=tmp_path, tee=Std.OUT), Std.OUT, 4, shown)
        feed(outlet, b"one\ntw", b"o\nunfinished")
        assert shown.text == b"[default4]:one\n[default4]:two\n"
        outlet.started()
        outlet.close()
        assert shown.text.endswith(b"[default4]:unfinished\n")
        assert (tmp_path / "4" / "stdout.log").read_bytes() == b"one\ntwo\nunfinished"

    asyncio.run(scene())


def test_a_spares_output_waits_for_its_rank(tmp_path: Path) -> None:
    async def scene() -> None:
        shown = Shown()
        outlet = Outlet(LogPlan(folder=tmp_path, redirects={1: Std.OUT}), Std.OUT, None, shown)
        feed(outlet, b"importing\n")
        assert shown.text == b""
        outlet.assigned(1)
        feed(outlet, b"training\n")
        outlet.started()
        outlet.close()
        assert shown.text == b""
        assert (tmp_path / "1" / "stdout.log").read_bytes() == b"importing\ntraining\n"

    asyncio.run(scene())


def test_a_spare_that_never_gets_a_rank_is_heard_all_the_same(tmp_path: Path) -> None:
    async def scene() -> None:
        shown = Shown()
        outlet = Outlet(LogPlan(folder=tmp_path, tee=Std.ALL), Std.ERR, None, shown)
        feed(outlet, b"Traceback ...\nImportError: no module")
        outlet.started()
        outlet.close()
        assert shown.text == b"Traceback ...\nImportError: no module\n"

    asyncio.run(scene())


def test_a_full_disk_costs_lines_of_a_log_and_nothing_else(tmp_path: Path) -> None:
    async def scene() -> None:
        (tmp_path / "0").mkdir()
        (tmp_path / "0" / "stdout.log").symlink_to("/dev/full")
        shown = Shown()
        outlet = Outlet(LogPlan(folder=tmp_path, tee=Std.OUT), Std.OUT, 0, shown)
        feed(outlet, b"one\n", b"two\n")
        outlet.started()
        outlet.close()
        assert b"is given up: No space left" in shown.text and b"[default0]:two\n" in shown.text

    asyncio.run(scene())
