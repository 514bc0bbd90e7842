"""`understudy status`: which member holds which rank, what is ready to take over, and how the last recovery went.

Live on a terminal, plain lines otherwise. When the job does not answer any more, what its ledger knows.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from understudy.cli import api_client
from understudy.cli.api_client import UNREACHABLE, ApiProblem, Client, client_for, find_run, standby_advice
from understudy.errors import LedgerError
from understudy.ledger import goodput
from understudy.ledger.narrative import summarize
from understudy.ledger.reading import read_run
from understudy.protocol.commands import DecisionKind
from understudy.wire.renewal import WARN_BEFORE, day_of

_EVERY = 1.0  # seconds
_ANSWER_TIMEOUT = 60.0  # seconds for which a live picture waits for an answer
_PHASES = ("detect", "approach", "stop", "rehearse", "regroup", "transfer", "resume")
_WORTH_SAYING = 10.0  # seconds without a committed step
_MOST_RANKS = 64  # lines for ranks; of a larger world only those that are not as they should be
Json = Mapping[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Shows a running job. Exit code 0; 3: no answer and the run did not end, or what answers does not lead; "
        "4: not allowed."
    )
    parser.add_argument("--once", action="store_true", help="print once, also on a terminal")
    parser.add_argument("--json", action="store_true", help="print once, as one JSON document")
    api_client.add_arguments(parser)


def main(args: argparse.Namespace) -> int:
    try:
        client = client_for(args)
        seen = look(client)
        if args.json:
            print(json.dumps(seen.document()))
        elif sys.stdout.isatty() and not args.once and seen.leads:
            _live(client, seen)
        else:
            print("\n".join(seen.lines()))
    except ApiProblem as problem:
        if args.api or problem.code != UNREACHABLE:
            print("\n".join(problem.lines()), file=sys.stderr)
            return problem.code
        return _from_ledger(find_run(args), problem, as_json=args.json)
    except KeyboardInterrupt:
        return 0
    return 0 if seen.leads else UNREACHABLE


def _live(client: Client, seen: "Seen") -> None:
    """A coordinator that dies is waited for, or rather for the one that leads after it."""
    from rich.live import Live
    from rich.text import Text

    lines, answered = seen.lines(), time.monotonic()
    with Live(Text("\n".join(lines)), auto_refresh=False) as screen:
        while True:
            time.sleep(_EVERY)
            try:
                lines, answered, remark = look(client).lines(), time.monotonic(), []
            except ApiProblem as problem:
                if problem.code != UNREACHABLE or time.monotonic() - answered > _ANSWER_TIMEOUT:
                    raise
                remark = ["", f"no answer for {time.monotonic() - answered:.0f} s: {problem.reason}"]
            screen.update(Text("\n".join([*lines, *remark])), refresh=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Everything that is shown. `api`: the one that answered; a coordinator that leads, if one was found."""

    api: str
    job: Json
    members: Sequence[Json] = ()
    spares: Sequence[Json] = ()
    hosts: Sequence[Json] = ()

    @property
    def leads(self) -> bool:
        return bool(self.job["leading"])

    def document(self) -> dict[str, object]:
        pages = {"members": list(self.members), "spares": list(self.spares), "hosts": list(self.hosts)}
        return {"api": self.api, "job": dict(self.job), **pages, "ledger": None}

    def lines(self) -> list[str]:
        if not self.leads:
            return [
                f"job {self.job['job']}: the coordinator of {self.api} stands by, so it knows nothing of the ranks",
                f"next: {standby_advice(self.job)}",
            ]
        if self.job["stage"] is None:
            return [f"job {self.job['job']}: this coordinator waits for hosts"]
        return [
            *job_lines(self.job),
            *member_lines(self.members, self.job),
            *spare_lines(self.spares),
            *host_lines(self.hosts),
            *recovery_lines(self.job),
        ]


def look(client: Client) -> Seen:
    client, job = client.leading()
    if not job["leading"] or job["stage"] is None:
        return Seen(api=client.url, job=job)
    try:
        seen = client.get("/v1/overview")
    except ApiProblem as problem:
        if problem.status != 404:
            raise
        members, spares, hosts = (client.get(f"/v1/{page}") for page in ("members", "spares", "hosts"))
        seen = {"job": job, "members": members, "spares": spares, "hosts": hosts}  # an older job has no such page
    return Seen(api=client.url, **{page: seen[page] for page in ("job", "members", "spares", "hosts")})


def job_lines(job: Json) -> list[str]:
    lines = [f"job {job['job']}: {job['stage']}, generation {job['generation']}{_step(job)}"]
    warming = f", {job['spares_starting']} warming up" if job["spares_starting"] else ""
    lines.append(f"ranks {job['ranks_up']}/{job['world_size']} up, spares: {job['spares_warm']} warm{warming}")
    if job.get("degraded"):
        absent = job["absent_ranks"]
        lines.append(
            f"degraded: the world goes on without rank {_ranks(absent)} ({len(absent)} of {job['world_size']}) "
            "at the same global batch; they come back when there are spares"
        )
    if job.get("goodput"):  # an older job does not say it
        lines.append(job["goodput"]["sentence"])
    if job["outcome"] is not None:
        lines.append(f"the job {job['outcome']}: {job['reason']}")
    elif not job["spares_warm"]:
        lines.append("no spare is warm: a rank that is lost now has to wait for one")
    return lines


def _step(job: Json) -> str:
    if job["committed_step"] is None:
        return ""
    still: float = job.get("committed_step_unchanged_seconds") or 0.0  # an older job does not say it
    remark = f", no further one for {_ago(still)}" if still >= _WORTH_SAYING else ""
    return f", step {job['committed_step']}{remark}"


def member_lines(members: Sequence[Json], job: Json) -> list[str]:
    held = {member["rank"] for member in members}
    rows = [
        (
            str(one["rank"]),
            one["member"],
            one["host"],
            one["standing"],
            "-" if one["step"] is None else str(one["step"]),
        )
        for one in members
        if len(members) <= _MOST_RANKS or one["standing"] != "active" or not one["connected"]
    ]
    absent = set(job.get("absent_ranks", ()))
    empty = [rank for rank in range(job["world_size"]) if rank not in held][:_MOST_RANKS]
    rows += [(str(rank), "none", "-", "absent" if rank in absent else "vacant", "-") for rank in empty]
    more = [f"({len(members)} ranks; only those that are not active are shown)"] if len(members) > _MOST_RANKS else []
    return ["", *table(("rank", "member", "host", "standing", "step"), rows), *more]


def spare_lines(spares: Sequence[Json]) -> list[str]:
    words = {"parked": "warm", "starting": "warming up"}
    rows = [
        (
            one["member"],
            one["host"],
            words.get(one["standing"], f"{one['standing']}, takes over rank {one['rank']}"),
        )
        for one in spares[:_MOST_RANKS]
    ]
    return ["", *table(("spare", "host", "state"), rows)] if rows else ["", "no spare"]


def host_lines(hosts: Sequence[Json]) -> list[str]:
    if len(hosts) < 2:
        return []
    rows = [
        (one["host"], one["state"], _ranks(one["ranks"]), f"{one['spares_warm']} of {one['spares_wanted']}")
        for one in hosts[:_MOST_RANKS]
    ]
    return ["", *table(("host", "state", "ranks", "spares warm"), rows), *_certificate_lines(hosts)]


def _certificate_lines(hosts: Sequence[Json]) -> list[str]:
    """Of those that end within a week; a coordinator of an earlier version tells none."""
    told = [(one["host"], one.get("certificate_ends")) for one in hosts]
    soon = [(host, at) for host, at in told if at is not None and at - time.time() < WARN_BEFORE]
    return [f"the certificate of host {host} ends on {day_of(at)}; renew it there" for host, at in soon[:_MOST_RANKS]]


def recovery_lines(job: Json) -> list[str]:
    predicted = job["predicted_recovery_seconds"]
    words = "unknown yet" if predicted is None else f"{predicted:.2f} s (median of the past ones)"
    lines = ["", f"a recovery takes: {words}"]
    last = job["last_recovery"]
    if last is None:
        return [*lines, "last recovery: none yet"]
    total = last["phases"].get("total", 0.0)
    what = "last move: a pause of" if last["kind"] == "move" else "last recovery:"
    lines.append(f"{what} {total * 1000:.0f} ms, {_ago(last['seconds_ago'])} ago, resumed at step {last['step']}")
    lines += [f"  {reason}" for reason in last["reasons"]]
    lines += [f"  rank {rank}: {old or 'no member'} -> {new}" for rank, old, new in last["swaps"]]
    phases = [f"{name} {last['phases'][name] * 1000:.0f}" for name in _PHASES if name in last["phases"]]
    return [*lines, f"  ms: {' | '.join(phases)}"]


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(head), *(len(row[place]) for row in rows), 0) for place, head in enumerate(heads)] if rows else []
    if not rows:
        return []
    return [
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in (heads, *rows)
    ]


def _ranks(ranks: Sequence[int]) -> str:
    if not ranks:
        return "-"
    return ",".join(map(str, ranks[:12])) + (f" and {len(ranks) - 12} more" if len(ranks) > 12 else "")


def _ago(seconds: float) -> str:
    for size, name in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} s"


def _from_ledger(folder: Path, problem: ApiProblem, *, as_json: bool) -> int:
    """The run is over, or runs without an API."""
    try:
        run = read_run(folder)
    except LedgerError:
        print("\n".join(problem.lines()), file=sys.stderr)
        return problem.code
    sentence = summarize(run).sentence()
    last = run.decisions[-1] if run.decisions else None
    has_ended = last is not None and last.kind in (DecisionKind.STOP.value, DecisionKind.FINISH.value)
    if as_json:
        decision = None if last is None else {"kind": last.kind, "reason": last.reason, "code": last.code}
        told = {"folder": str(folder), "summary": sentence, "last_decision": decision, "has_ended": has_ended}
        print(json.dumps({"api": None, "job": None, "members": [], "spares": [], "hosts": [], "ledger": told}))
    else:
        print(f"the job of {folder} does not answer; its ledger says: {sentence}")
        if (account := goodput.read(folder)) is not None:
            print(account.sentence())
        if last is not None:
            print(f"the last decision was {last.kind}: {last.reason}")
        print(f"next: understudy explain {folder}")
    return 0 if has_ended else UNREACHABLE
