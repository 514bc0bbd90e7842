"""`understudy events`: decisions and recoveries of a running job, with their reasons, as lines or as JSON."""

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any

from understudy.cli import api_client
from understudy.cli.api_client import ApiProblem, Client, client_for, standby_problem


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Shows what was decided and why. Exit code 0; 3: no answer; 4: not allowed."
    parser.add_argument("--follow", "-f", action="store_true", help="go on until the job ends")
    parser.add_argument("--after", type=int, default=None, help="only events after this number (default: the last 20)")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    api_client.add_arguments(parser)


def main(args: argparse.Namespace) -> int:
    try:
        _show(client_for(args), args)
    except ApiProblem as problem:
        print("\n".join(problem.lines()), file=sys.stderr)
        return problem.code
    except KeyboardInterrupt:
        return 0
    return 0


def _show(client: Client, args: argparse.Namespace) -> None:
    client, job = client.leading()
    if not job["leading"]:
        raise standby_problem(client, job)
    after = args.after if args.after is not None else max(0, int(job["newest_event"]) - 20)
    if args.follow:
        for event in client.stream(f"/v1/events/stream?after={after}"):
            _print(event, args.json)
        return
    found = client.get(f"/v1/events?after={after}&limit=1000")
    if found["missed"]:
        print(f"{found['missed']} events are not kept any more; they are in the ledger", file=sys.stderr)
    for event in found["events"]:
        _print(event, args.json)


def _print(event: Mapping[str, Any], as_json: bool) -> None:
    print(json.dumps(event) if as_json else line_of(event), flush=True)


def line_of(event: Mapping[str, Any]) -> str:
    if event["type"] == "recovery":
        total = event["details"].get("phases", {}).get("total", 0.0)
        what = f"{event['kind']} done in {total * 1000:.0f} ms, at step {event['details']['step']}"
        return f"{event['number']:>5}  generation {event['generation']}  {what}: {event['reason']}"
    return f"{event['number']:>5}  generation {event['generation']}  {event['kind']}: {event['reason']}"
