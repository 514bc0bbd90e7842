"""The picture of a recovery in the README: a real run, as its terminal showed it.

    python docs/tools/recovery_picture.py record    # trains twice, kills a rank, writes docs/pictures/recovery.txt
    python docs/tools/recovery_picture.py draw      # docs/pictures/recovery.svg from that text

`record` needs a minute or two on a quiet machine; the times in the picture are those of that run. It leaves out the
lines of progress, and shortens paths of the machine. A test compares the picture with what `draw` makes of the text.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[2]
TEXT = ROOT / "docs" / "pictures" / "recovery.txt"
PICTURE = TEXT.with_suffix(".svg")

_RANKS, _STEPS, _KILLED_RANK, _KILLED_AFTER = 4, 40, 2, 20
_LIMIT = 1200.0  # seconds for one run
_PROGRESS = re.compile(r"understudy: (step \d+ \||founding \||wait: no first step|the fork server )")

_COLUMNS = 120
_WIDTH, _LINE, _MARGIN, _BAR = 7.85, 19, 18, 34  # of a character, a line, the border and the bar above, in pixels
_COLOURS = (
    (r"\$ ", "#f8f8f2", "bold"),
    (r"understudy: ---", "#8be9fd", "bold"),
    (r"understudy:", "#8be9fd", "normal"),
    (r"identical", "#50fa7b", "bold"),
    (r"", "#9aa5b1", "normal"),
)


# -- record -----------------------------------------------------------------------------------------------------------


def record() -> str:
    """What the terminal showed, with the commands that were given."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "examples").symlink_to(ROOT / "examples")
        for _ in _run(folder, "quiet", kill=False):
            pass
        shown = list(_run(folder, "faulty", kill=True))
        verify = ["understudy", "verify", "quiet", "faulty"]
        result = subprocess.run(verify, cwd=folder, capture_output=True, text=True, check=True, timeout=_LIMIT)
        lines = [*shown, f"$ {' '.join(verify)}", *result.stdout.splitlines()]
        return presentable("\n".join(lines), folder)


def presentable(text: str, folder: str) -> str:
    """`folder`: in which the run was started."""
    text = text.replace(f"{folder}/", "").replace(sys.executable, "python")
    return "".join(f"{line}\n" for line in text.splitlines() if not _PROGRESS.match(line))


def _run(folder: str, name: str, *, kill: bool) -> Iterator[str]:
    flags = f"--nproc-per-node {_RANKS} --spares 1 --ledger-digest-every 1 --run-dir {name}"
    command = f"understudy run {flags} examples/01_ddp.py --steps {_STEPS}"
    yield f"$ {command}"
    with subprocess.Popen(
        command.split(), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as run:
        assert run.stdout is not None
        warm = False
        for line in run.stdout:
            yield line.rstrip()
            warm = warm or "1 warm" in line
            reached = re.match(r"step +(\d+) ", line)
            if kill and warm and reached is not None and int(reached[1]) >= _KILLED_AFTER:
                kill = False
                pid = _worker(run.pid, _KILLED_RANK)
                os.kill(pid, signal.SIGKILL)
                yield f"$ kill -9 {pid}    # in another terminal: the process of rank {_KILLED_RANK}"
        if run.wait(_LIMIT) != 0 or kill:
            raise SystemExit(f"{command}: exit code {run.returncode}, killed: {not kill}")


def _worker(launcher: int, rank: int) -> int:
    """The workers run the script, in the order of their ranks; a spare comes after them."""
    workers: list[int] = []
    deadline = time.monotonic() + 10
    while len(workers) <= _RANKS and time.monotonic() < deadline:
        children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
        workers = sorted(int(child) for child in children if "01_ddp.py" in _title(child))
    return workers[rank]


def _title(pid: str) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


# -- draw -------------------------------------------------------------------------------------------------------------


def draw(text: str) -> str:
    """The text as an SVG that needs no font but the reader's own."""
    rows = [(row, *_look(line)) for line in text.splitlines() for row in _wrapped(line)]
    width = round(_COLUMNS * _WIDTH + 2 * _MARGIN)
    height = _BAR + len(rows) * _LINE + _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        "<title>A rank is killed, and a spare takes it over at the same step</title>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#1e2430"/>',
        *(f'<circle cx="{20 + 18 * n}" cy="18" r="5.5" fill="{dot}"/>' for n, dot in enumerate(_DOTS)),
        '<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="13">',
    ]
    for number, (row, colour, weight) in enumerate(rows):
        y = _BAR + number * _LINE + 14
        look = f'fill="{colour}" font-weight="{weight}" xml:space="preserve"'
        parts.append(f'<text x="{_MARGIN}" y="{y}" {look}>{escape(row)}</text>')
    return "\n".join([*parts, "</g>", "</svg>"]) + "\n"


_DOTS = ("#ff5f56", "#ffbd2e", "#27c93f")


def _look(line: str) -> tuple[str, str]:
    return next((colour, weight) for begin, colour, weight in _COLOURS if re.match(begin, line))


def _wrapped(line: str) -> list[str]:
    """What goes on in the next row stands below the text of its own row, behind prefix and label."""
    label = re.match(r"(understudy: +)?([a-z]+ {2,})?", line)
    indent = " " * (len(label[0]) if label else 0)
    return textwrap.wrap(line, _COLUMNS, subsequent_indent=indent) or [""]


def main(arguments: list[str]) -> int:
    if arguments not in (["record"], ["draw"]):
        print(__doc__)
        return 2
    if arguments == ["record"]:
        TEXT.write_text(record())
    PICTURE.write_text(draw(TEXT.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
