"""Where output goes."""

import asyncio
import os
import threading
from pathlib import Path

import pytest

from understudy.agent.logs import LogPlan, Outlet, Route, Std, parse_std
from understudy.errors import SettingsError
from understudy.files.background import BackgroundFiles

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
    outlet = Outlet(LogPlan(folder=tmp_path), Std.OUT, None, Shown(), BackgroundFiles(print))
    assert outlet.descriptor is None


def test_a_teed_stream_is_shown_line_by_line_and_kept(tmp_path: Path) -> None:
    async def scene() -> None:
        shown, files = Shown(), BackgroundFiles(print)
        outlet = Outlet(LogPlan(folder=tmp_path, tee=Std.OUT), Std.OUT, 4, shown, files)
        feed(outlet, b"one\ntw", b"o\nunfinished")
        assert shown.text == b"[default4]:one\n[default4]:two\n"
        outlet.started()
        outlet.close()
        assert shown.text.endswith(b"[default4]:unfinished\n")
        assert await files.drain(10.0) == []
        assert (tmp_path / "4" / "stdout.log").read_bytes() == b"one\ntwo\nunfinished"

    asyncio.run(scene())


def test_a_spares_output_waits_for_its_rank(tmp_path: Path) -> None:
    async def scene() -> None:
        shown, files = Shown(), BackgroundFiles(print)
        outlet = Outlet(LogPlan(folder=tmp_path, redirects={1: Std.OUT}), Std.OUT, None, shown, files)
        feed(outlet, b"importing\n")
        assert shown.text == b""
        outlet.assigned(1)
        feed(outlet, b"training\n")
        outlet.started()
        outlet.close()
        assert shown.text == b"" and await files.drain(10.0) == []
        assert (tmp_path / "1" / "stdout.log").read_bytes() == b"importing\ntraining\n"

    asyncio.run(scene())


def test_a_spare_that_never_gets_a_rank_is_heard_all_the_same(tmp_path: Path) -> None:
    async def scene() -> None:
        shown, files = Shown(), BackgroundFiles(print)
        outlet = Outlet(LogPlan(folder=tmp_path, tee=Std.ALL), Std.ERR, None, shown, files)
        feed(outlet, b"Traceback ...\nImportError: no module")
        outlet.started()
        outlet.close()
        assert shown.text == b"Traceback ...\nImportError: no module\n"

    asyncio.run(scene())


def test_a_redirected_stream_is_written_by_us_and_not_by_the_process(tmp_path: Path) -> None:
    """Else a full disk would be an error in the script's own print()."""

    async def scene() -> None:
        shown, files = Shown(), BackgroundFiles(print)
        outlet = Outlet(LogPlan(folder=tmp_path, redirects=Std.OUT), Std.OUT, 0, shown, files)
        feed(outlet, b"one\n", b"two\n")
        outlet.started()
        outlet.close()
        assert await files.drain(10.0) == []
        assert (tmp_path / "0" / "stdout.log").read_bytes() == b"one\ntwo\n" and shown.text == b""

    asyncio.run(scene())


def test_the_successor_of_a_rank_goes_on_in_its_file(tmp_path: Path) -> None:
    async def scene() -> None:
        shown, files = Shown(), BackgroundFiles(print)
        for text in (b"first\n", b"second\n"):
            outlet = Outlet(LogPlan(folder=tmp_path, redirects=Std.OUT), Std.OUT, 0, shown, files)
            feed(outlet, text)
            outlet.started()
            outlet.close()
        assert await files.drain(10.0) == []
        assert (tmp_path / "0" / "stdout.log").read_bytes() == b"first\nsecond\n"

    asyncio.run(scene())


@pytest.mark.parametrize("kind", ["redirects", "tee"])
def test_a_full_disk_costs_lines_of_a_log_and_nothing_else(tmp_path: Path, kind: str) -> None:
    async def scene() -> None:
        said: list[str] = []
        for rank in ("0", "1"):
            (tmp_path / rank).mkdir()
            (tmp_path / rank / "stdout.log").symlink_to("/dev/full")
        shown, files = Shown(), BackgroundFiles(said.append)
        plan = LogPlan(folder=tmp_path, redirects=Std.OUT, tee=Std.OUT if kind == "tee" else Std.NONE)
        outlets = [Outlet(plan, Std.OUT, rank, shown, files) for rank in (0, 1)]
        for outlet in outlets:
            feed(outlet, b"one\n", b"two\n")
            outlet.started()
            outlet.close()
        assert (b"[default0]:two\n" in shown.text) == (kind == "tee")
        missing = await files.drain(0.2)
        assert len(missing) == 2 and "stdout.log: 2 entries (No space left on device)" in missing[0]
        (text,) = said
        assert "stdout.log cannot be written: No space left on device. Training goes on" in text
        assert f"will be missing from {tmp_path}" in text, "the folder of all logs, and so it is said once"

    asyncio.run(scene())


def test_a_process_that_never_stops_writing_does_not_keep_the_loop_busy(tmp_path: Path) -> None:
    async def scene() -> None:
        shown, files = Shown(), BackgroundFiles(print)
        outlet = Outlet(LogPlan(folder=tmp_path, redirects=Std.OUT), Std.OUT, 0, shown, files)
        assert outlet.descriptor is not None
        descriptor, stop = os.dup(outlet.descriptor), threading.Event()

        def write_on() -> None:
            while not stop.is_set():
                os.write(descriptor, b"x" * 4096)

        writer = threading.Thread(target=write_on)
        writer.start()
        for _ in range(20):
            await asyncio.wait_for(asyncio.sleep(0.005), 20.0)  # never comes back while somebody else has the loop
        stop.set()
        while writer.is_alive():
            await asyncio.sleep(0.005)
        os.close(descriptor)
        outlet.started()
        outlet.drain()
        assert await files.drain(10.0) == []

    asyncio.run(scene())


def test_a_log_that_blocks_for_ever_holds_up_neither_the_loop_nor_the_process(tmp_path: Path) -> None:
    async def scene() -> None:
        (tmp_path / "0").mkdir()
        os.mkfifo(tmp_path / "0" / "stdout.log")  # nobody reads it: to open it blocks
        shown, files = Shown(), BackgroundFiles(print)
        outlet = Outlet(LogPlan(folder=tmp_path, redirects=Std.OUT), Std.OUT, 0, shown, files)
        began = asyncio.get_running_loop().time()
        feed(outlet, *[b"x" * 60_000] * 20)
        outlet.started()
        outlet.close()
        assert asyncio.get_running_loop().time() - began < 5.0
        (missing,) = await files.drain(0.1)
        assert "stdout.log: " in missing and "there was not enough time" in missing

    asyncio.run(scene())
