"""`understudy certs FOLDER NAME...`: a set of certificates for trying things out: an authority, and one pair per party.
Without names it says what those that are there are for, and when they end.

For production use the authority that you have; what counts is that all parties trust the same one, and that each
certificate says what its holder may be (`wire.roles`).
"""

import argparse
from pathlib import Path

from understudy.errors import SettingsError
from understudy.wire.certificates import CERTIFICATE, Certificates
from understudy.wire.issuing import make_set
from understudy.wire.renewal import UNKNOWN, day_of

_DAYS = 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="gets ca.pem, and a folder per party with ca.pem, cert.pem, key.pem")
    parser.add_argument("party", nargs="*", help="names: coordinator, host1, ... (none: only say when they end)")
    for flag, role in (
        ("--coordinator", "a coordinator"),
        ("--api-client", "a client of the HTTP API: a monitor, or a person with `understudy status`"),
        ("--agent", "an agent, though it is named for something else, too; a party that is named for nothing is one"),
    ):
        text = f"one of the parties that may be {role} (may be given again)"
        parser.add_argument(flag, action="append", default=[], metavar="NAME", help=text)
    parser.add_argument("--days", type=int, default=_DAYS, help=f"for how long they are valid (default {_DAYS})")


def main(args: argparse.Namespace) -> int:
    for flag, names in (("coordinator", args.coordinator), ("api-client", args.api_client), ("agent", args.agent)):
        strangers = [name for name in names if name not in args.party]
        if strangers:
            raise SettingsError(f"--{flag} {strangers[0]} is not one of the parties")
    if args.party and not args.coordinator:
        raise SettingsError(
            "say which of the parties may be coordinators, with --coordinator NAME: no party is one by default, "
            "and without one no agent could connect"
        )
    if args.days < 1:
        raise SettingsError(f"--days {args.days}: give at least 1")
    if args.party:
        places = make_set(
            args.folder,
            args.party,
            coordinators=args.coordinator,
            api_clients=args.api_client,
            agents=args.agent,
            days=args.days,
        )
    else:
        places = sorted(file.parent for file in args.folder.glob(f"*/{CERTIFICATE}"))
    if not places:
        raise SettingsError(f"there are no certificates in {args.folder}: name the parties to make some")
    for place in places:
        print(f"{place}: {_told(Certificates.read(place), place.name)}")
    return 0


def _told(certificates: Certificates, name: str) -> str:
    certified, ends = certificates.certified(), certificates.ends().values()
    if certified is None or not ends:
        return f"for {name}, {UNKNOWN}"
    roles = ", ".join(sorted(role.value for role in certified.roles)) or "no role: make a new set"
    return f"for {name} ({roles}), until {day_of(min(ends))}"
