"""`understudy run` with a store process that hosts nothing: the stand-ins need none, and torch takes long to load."""

import sys
from pathlib import Path

from understudy.cli import main as command_line
from understudy.cli import run_flags

run_flags.FORK_SERVER = (str(Path(__file__).parent / "fork_server_without_engine.py"),)
run_flags.STORE_COMMAND = (sys.executable, "-S", "-E", "-c", "import sys; sys.stdin.read()")
sys.exit(command_line.main())
