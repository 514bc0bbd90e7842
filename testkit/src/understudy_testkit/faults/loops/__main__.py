"""Starts one of the loops: `-m understudy_testkit.faults.loops --mode cnn --steps 60 --folder FOLDER`."""

import argparse
import importlib
import os
import sys
from pathlib import Path

_LOOPS = ("cnn", "language_model", "gan")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=_LOOPS, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="where it leaves log, evaluations and models")
    parser.add_argument("--faults", type=Path, help="a schedule, see understudy_testkit.faults.catalogue")
    parser.add_argument("--proofs", type=Path, help="where faults leave their proofs")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    importlib.import_module(f"understudy_testkit.faults.loops.{options.mode}").train(options)
    sys.stdout.flush()
    os._exit(0)  # taking torch's modules apart would take longer than some of these runs


if __name__ == "__main__":
    main()
