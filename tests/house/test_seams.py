"""Which accelerator there is, and which communicators, is known behind the two seams and nowhere else."""

import re
from pathlib import Path

from tests.house.sources import ROOT

SOURCE = ROOT / "src" / "understudy"
WHERE = ("groups", "integrations", "state", "training")
BEHIND = (SOURCE / "groups" / "families",)
TELLTALES = re.compile(
    r"torch\.(cuda|xpu|npu|hpu|mps)\b|\bis_cuda\b|device\.type\s*(==|!=|in\b)|ProcessGroup(NCCL|XCCL)", re.IGNORECASE
)


def telltales(folder: Path) -> list[str]:
    return [
        f"{path.relative_to(folder)}:{number}: {line.strip()}"
        for path in sorted(folder.rglob("*.py"))
        if not any(path.is_relative_to(behind) for behind in BEHIND)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if TELLTALES.search(line)
    ]


def test_nothing_outside_asks_which_kind_of_device_it_is() -> None:
    assert [found for room in WHERE for found in telltales(SOURCE / room)] == []


def test_whoever_asks_is_found(tmp_path: Path) -> None:
    (tmp_path / "peeping.py").write_text("if tensor.device.type == 'cuda':\n    torch.cuda.synchronize()\n")
    assert len(telltales(tmp_path)) == 2
