"""Declares the flags of `understudy run`: torchrun's, with torchrun's meanings, and our own.

Written by hand, because the command line must not import torch; a test compares it with torchrun's own parser.
The help texts are the only description of a flag: `docs/tools/reference.py` makes the reference page of them. The help
of one of torchrun's flags begins with `differs:`, `no effect:` or `refused:` unless it does what it does there. What
becomes of the flags is in `run_flags`.
"""

import argparse
from pathlib import Path

import msgspec

from understudy.cli import http_flags
from understudy.cli.log import FORMATS
from understudy.cli.policy_file import PolicyFile
from understudy.ledger.digest_kinds import KINDS
from understudy.placement import placing

JOB = (
    "the name of the job; all its hosts and coordinators must have the same (default: what a scheduler says, "
    f"docs/hosts.md, else {placing.JOB})"
)
ATTEMPT = (
    "which start of the job this is, from 0: hosts and coordinators of one attempt do not see what another one left in "
    "the store (default: $UNDERSTUDY_ATTEMPT, or how often Slurm has started the job again, else 0)"
)
_POLICY = PolicyFile()
_LIMITS = msgspec.structs.asdict(_POLICY.limits)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _add_torchrun_flags(parser)
    _add_spare_flags(parser)
    _add_fallback_flags(parser)
    _add_limits(parser)
    _add_detection_flags(parser)
    _add_host_flags(parser)
    _add_output_flags(parser)
    parser.add_argument("training_script", help="the script (or module, or program) that every rank runs")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER, help="its own arguments")


def _flag(group: "argparse._ArgumentGroup", name: str, **settings: object) -> None:
    """A flag with its torchrun spelling and, where it has one, the spelling with underscores."""
    spellings = [name] if "-" not in name[2:] else [name, "--" + name[2:].replace("-", "_")]
    group.add_argument(*spellings, **settings)  # type: ignore[arg-type]


def _limit(group: "argparse._ArgumentGroup", name: str, kind: type, text: str) -> None:
    """A flag of the policy: its default is None, because what `--policy` says comes before the usual value."""
    usual = _LIMITS[name[2:].replace("-", "_")]
    _flag(group, name, type=kind, default=None, help=f"{text} (default {usual:g})")


def comma_separated(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


# -- torchrun's -------------------------------------------------------------------------------------------------------


def _add_torchrun_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("flags of torchrun")
    text = (
        "differs: the size of the world does not change. Of MIN:MAX hosts the first MIN that come hold ranks, every "
        "further one is a spare host; one number is that many hosts without spare ones. More than 1 need --store or "
        "--coordinator (default: what a launcher or scheduler says, docs/hosts.md, else 1)"
    )
    _flag(group, "--nnodes", default=None, help=text)
    text = (
        "differs: ranks of this host: a number; gpu, the devices of this host (by the files of their driver: torch is "
        "not loaded); cpu, the CPUs that this process may use; auto, the devices if there are any, else the CPUs. xpu "
        "is refused (default: what a launcher or scheduler says, docs/hosts.md, else 1)"
    )
    _flag(group, "--nproc-per-node", default=None, help=text)
    _flag(group, "--rdzv-backend", default="static", help="no effect: one host needs no rendezvous")
    _flag(group, "--rdzv-endpoint", default="", help="no effect: one host needs no rendezvous")
    text = "differs: names the folder of the log files (default: the name of the run's folder)"
    _flag(group, "--rdzv-id", default="none", help=text)
    _flag(group, "--rdzv-conf", default="", help="no effect: one host needs no rendezvous")
    _flag(group, "--standalone", action="store_true", help="no effect: one host always is")
    text = (
        "differs: how often the whole world may start over before its first commit; 0 keeps the default of 3. After "
        "the first commit a lost rank is replaced, and nothing is restarted"
    )
    _flag(group, "--max-restarts", type=int, default=0, help=text)
    text = "no effect: the kernel reports the end of a process at once (pidfd); nothing is polled"
    _flag(group, "--monitor-interval", type=float, default=0.1, help=text)
    methods = ["spawn", "fork", "forkserver"]
    _flag(group, "--start-method", default="spawn", choices=methods, help="no effect: every rank is a fresh process")
    text = "refused: events are in the run's ledger"
    _flag(group, "--event-log-handler", default="null", help=text)
    _flag(group, "--role", default="default", help="the name in the prefix of teed lines")
    group.add_argument("-m", "--module", action="store_true", help="the script is a module, as in python -m")
    _flag(group, "--no-python", action="store_true", help="the script is a program of its own")
    text = "no effect: the script runs as __main__ either way"
    _flag(group, "--run-path", action="store_true", help=text)
    _add_log_flags(group)
    text = (
        "differs: on many hosts, this host's place among those with ranks (default: what a launcher or scheduler says, "
        "docs/hosts.md, else the order of arrival); no effect on one host"
    )
    _flag(group, "--node-rank", type=int, default=None, help=text)
    _flag(group, "--master-addr", default="127.0.0.1", help="differs: this host only; another address is refused")
    text = "no effect: the store listens on a free port, and every worker is told which"
    _flag(group, "--master-port", type=int, default=None, help=text)
    text = (
        "differs: on many hosts, the address under which the others reach this one (default: the one from which it "
        "reaches a coordinator); no effect on one host"
    )
    _flag(group, "--local-addr", default=None, help=text)
    _flag(group, "--logs-specs", default=None, help="refused: use --redirects, --tee and --log-dir")
    numa = ["node", "socket", "exclusive", "core-complex"]
    text = "refused: start the script under numactl (--no-python numactl ...)"
    _flag(group, "--numa-binding", default=None, choices=numa, help=text)
    text = "signals that end the job orderly; a second one ends it at once"
    _flag(group, "--signals-to-handle", default="SIGTERM,SIGINT,SIGHUP,SIGQUIT", help=text)
    text = "differs: seconds from SIGTERM to SIGKILL (default 5)"
    _flag(group, "--shutdown-timeout", type=int, default=None, help=text)
    text = "refused: a spare learns its local rank too late for it"
    _flag(group, "--virtual-local-rank", action="store_true", help=text)
    shells = ["bash", "zsh", "tcsh"]
    _flag(group, "--print-completion", default=None, choices=shells, help="refused: there is no completion")


def _add_log_flags(group: "argparse._ArgumentGroup") -> None:
    text = (
        "differs: files are LOG_DIR/RUN_ID/attempt_0/RANK/stdout.log and stderr.log, and the run id has no "
        "random tail (default: logs in the run's folder). The replacement of a rank appends to the same files"
    )
    _flag(group, "--log-dir", default=None, help=text)
    streams = "0 none, 1 stdout, 2 stderr, 3 both, or rank by rank as in 0:3,1:2"
    text = (
        f"streams that go to files only: {streams}. The launcher writes the files in the background: a full or slow "
        "disk costs lines of a log (which say so), and never blocks or ends a rank"
    )
    group.add_argument("-r", "--redirects", default="0", help=text)
    text = f"streams that go to files and to the console: {streams}"
    group.add_argument("-t", "--tee", default="0", help=text)
    text = "prefix of teed lines, with ${role_name}, ${rank}, ${local_rank}, ${hostname}"
    _flag(group, "--log-line-prefix-template", default="", help=text)
    _flag(group, "--local-ranks-filter", default="", help="show only these ranks on the console, as in 0,1")
    text = "refused: use --tee and filter the files"
    _flag(group, "--duplicate-stdout-filters", type=comma_separated, default=[], help=text)
    _flag(group, "--duplicate-stderr-filters", type=comma_separated, default=[], help=text)


# -- ours -------------------------------------------------------------------------------------------------------------


def _add_spare_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("spares and the run's folder")
    text = (
        "warm processes to keep ready (default %(default)s). With 0 the job goes on without a lost rank if it has "
        "replicas (docs/degrade.md), and ends otherwise"
    )
    _flag(group, "--spares", type=int, default=1, help=text)
    text = "start every spare from nothing; the default is to fork it from a process that has torch loaded"
    _flag(group, "--no-fork-server", action="store_true", help=text)
    text = "fork the initial ranks as well: always, never, or (auto, the default) if there are no more cores than ranks"
    _flag(group, "--fork-initial-ranks", choices=("auto", "always", "never"), default="auto", help=text)
    text = (
        "folder of this run, with run.json, ledger/ and logs/ (default ./understudy-runs/TIME-PID). A folder that "
        "holds a run is refused. Training does not need its disk: when that is full, slow, read-only or removed, a "
        "message says so once, and the ledger marks what is missing"
    )
    _flag(group, "--run-dir", default=None, help=text)
    text = "record digests of the state every so many steps (default %(default)s: never)"
    _flag(group, "--ledger-digest-every", type=int, default=0, help=text)
    text = (
        "how those digests are taken: word-sums, which a device reckons where the state is; xxh3, of bytes in host "
        "memory; or (auto, the default) what suits the device. Runs that are to be compared must agree"
    )
    _flag(group, "--ledger-digests", choices=("auto", *KINDS), default="auto", help=text)
    text = "TOML file with any of these flags under [run] (docs/configuration.md); flags win over it"
    _flag(group, "--config", type=Path, default=None, help=text)


def _add_fallback_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("when a swap is not possible", "see docs/recovery-strategies.md")
    text = (
        "where some rank has no twin, snapshot every rank's state every so many steps into memory that outlives "
        f"its process (default {_POLICY.recovery.peer_memory.snapshot_every}: never)"
    )
    _flag(group, "--peer-snapshot-every", type=int, default=None, help=text)
    text = "folder of durable checkpoints; a job begins with the newest one that is whole (docs/checkpoints.md)"
    _flag(group, "--checkpoint-dir", default="", help=text)
    text = "steps between two durable checkpoints (default %(default)s: none is written)"
    _flag(group, "--checkpoint-every", type=int, default=0, help=text)
    text = (
        "never go on without a replica that lost a rank; the default is to do so when there is no spare. Short for "
        "recovery.degrade.allowed = false"
    )
    _flag(group, "--no-degrade", action="store_true", help=text)
    text = (
        "times that all processes may begin anew with the state of the old ones "
        f"(default {_POLICY.rungs().restart}). Short for recovery.restart.budget"
    )
    _flag(group, "--max-restarts-from-memory", type=int, default=None, help=text)
    text = "TOML file with timeouts and the budget of each recovery strategy (docs/policy.md); flags win over it"
    _flag(group, "--policy", type=Path, default=None, help=text)


def _add_limits(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("limits and timeouts", "in seconds, unless a flag counts something")
    text = "processes that may be started after the first ones"
    _limit(group, "--max-replacements", int, text)
    text = "losses of one rank in the same step until the job stops"
    _limit(group, "--max-deaths-per-step", int, text)
    text = (
        "a rank that is stopped (SIGSTOP), or whose control thread does not answer, is replaced while others wait for "
        "it"
    )
    _limit(group, "--unresponsive-timeout", float, text)
    text = (
        "a rank that is busy inside a step while all others wait for it is replaced, never before "
        "--step-timeout-factor steps; after half of the time where neither its stack nor its CPU time changes"
    )
    _limit(group, "--busy-timeout", float, text)
    text = "a rank that is busy between two steps (evaluation, saving) while all others wait for it is replaced"
    _limit(group, "--idle-timeout", float, text)
    text = "from the start of a world to its first step; then the world starts over"
    _limit(group, "--setup-timeout", float, text)
    text = "ranks that all wait for each other are freed after this time at least"
    _limit(group, "--step-timeout-min", float, text)
    text = (
        "the deadline inside a step is this times the median of the last 50 steps, and at least a fifth of this times "
        "the slowest of them"
    )
    _limit(group, "--step-timeout-factor", float, text)
    _limit(group, "--warmup-timeout", float, "a joiner's imports, setup and rehearsal, at least")
    _limit(group, "--regroup-timeout", float, "regroup and transfer, without progress")
    text = "ranks that must be well for a request (replace, abort) to be granted; 0: half of them"
    _limit(group, "--min-healthy", int, text)


def _add_detection_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("detection", "see docs/detection.md")
    text = (
        "ranks that hold the same bytes (twins) compare digests of them every so many steps, and keep a snapshot of "
        "the last state on which all agreed (default %(default)s: never)"
    )
    _flag(group, "--check-replicas-every", type=int, default=0, help=text)
    text = (
        "what follows when a rank computes much slower than before: note (the default) says so; move also asks for the "
        "rank to be moved to a spare, once. One host only"
    )
    _flag(group, "--on-straggler", choices=["note", "move"], default="note", help=text)
    text = (
        "detectors to use, with commas between, as in straggler,device; `understudy plugins` lists what is there "
        "(default: every one that works, those of installed packages as well)"
    )
    _flag(group, "--detectors", default="", help=text)
    text = (
        "what follows from evidence, as in KIND=RESPONSE,KIND=RESPONSE: note says so (the default of each kind), move "
        "also asks for the rank to be moved to a spare, once; packages can bring further ones (docs/plugins.md). "
        "--on-straggler move is short for straggler=move. One host only"
    )
    _flag(group, "--on-evidence", default="", help=text)
    text = (
        "URL of the DCGM exporter of this host, as in http://localhost:9400/metrics; bad signs of a rank's device are "
        "reported. Never tried on a real device"
    )
    _flag(group, "--device-metrics", default="", help=text)


def _add_host_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("many hosts", "see docs/hosts.md")
    text = "HOST:PORT of every coordinator of the job, with commas between; this host then is one of many"
    _flag(group, "--coordinator", default="", help=text)
    text = (
        "folder:///PATH of a folder that all hosts share: coordinators meet there and agents find them, so that no "
        "--coordinator is needed; token and certificates that are not given are made there (docs/stores.md)"
    )
    _flag(group, "--store", default="", help=text)
    text = (
        "with --store: how many hosts run a coordinator beside their agent, those that come first (default 2; 0: they "
        "are started elsewhere). They end with the job"
    )
    _flag(group, "--coordinators", type=int, default=None, help=text)
    text = "offer this whole host as spares, as many as --nproc-per-node"
    _flag(group, "--spare-host", action="store_true", help=text)
    text = (
        "the name of this host in the job (default: what a scheduler calls this machine, docs/hosts.md, else its own "
        "name)"
    )
    _flag(group, "--host-name", default=None, help=text)
    _flag(group, "--job", default=None, help=JOB)
    _flag(group, "--attempt", type=int, default=None, help=ATTEMPT)
    text = (
        "file with the token of the job, readable by its owner only (chmod 600); two lines while it is being changed. "
        "It is read again every 10 s"
    )
    _flag(group, "--token-file", type=Path, default=None, help=text)
    text = (
        "folder with ca.pem, cert.pem and key.pem (`understudy certs` makes a set for tests), also for --http. The "
        "certificate must have the role agent with --coordinator, else coordinator. It is read again every 10 s"
    )
    _flag(group, "--certs", type=Path, default=None, help=text)
    _limit(group, "--host-timeout", float, "seconds from the end of a host's connection until it counts as lost")
    _limit(group, "--host-quarantine", float, "seconds for which a host that was lost gets no rank")
    text = "seconds between a SIGTERM to this host and its end, in which its ranks move to others (default %(default)g)"
    _flag(group, "--drain-grace", type=float, default=0.0, help=text)
    text = (
        "exit code of a host that SIGTERM has made leave when no rank was there any more, while the job goes on "
        "(default: 143, as of every process that SIGTERM ends; docs/exit-codes.md)"
    )
    _flag(group, "--leave-code", type=int, default=None, help=text)
    text = (
        "seconds for which a host without ranks looks for a coordinator, at its beginning or later; then it ends with "
        "exit code 69 (default %(default)g; 0: for ever). A host with ranks goes on looking"
    )
    _flag(group, "--rendezvous-timeout", type=float, default=1800.0, help=text)


def _add_output_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("HTTP and output", "see docs/api.md")
    _flag(group, "--http", default=None, help=http_flags.HTTP)
    _flag(group, "--http-tokens", type=Path, default=None, help=http_flags.TOKENS)
    _flag(group, "--alert-rules", type=Path, default=None, help=http_flags.RULES)
    _flag(group, "--health", default=None, help=http_flags.HEALTH)
    _flag(group, "--no-progress", action="store_true", help="no live progress line on a terminal")
    text = (
        "what the launcher itself says: text (the default) for people, or json, one document per line (docs/hosts.md); "
        "what ranks print stays as it is"
    )
    _flag(group, "--log-format", choices=FORMATS, default="text", help=text)
