"""Starts one of the loops: `-m understudy_testkit.faults.loops --mode cnn --steps 60 --folder FOLDER`."""

import argparse
from pathlib import Path

from understudy_testkit.faults.loops import cnn, gan, language_model

_LOOPS = {"cnn": cnn.train, "language-model": language_model.train, "gan": gan.train}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=sorted(_LOOPS), required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="where it leaves log, evaluations and models")
    parser.add_argument("--faults", type=Path, help="a schedule, see understudy_testkit.faults.catalogue")
    parser.add_argument("--proofs", type=Path, help="where faults leave their proofs")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    _LOOPS[options.mode](options)


if __name__ == "__main__":
    main()
