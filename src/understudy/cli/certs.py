"""`understudy certs FOLDER NAME...`: a set of certificates for trying things out: an authority, and one pair per party.
Without names it says when those that are there end.

For production use the authority that you have; what counts is that agents and coordinators trust the same one, and that
coordinators' certificates are for the name `understudy`.
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
    parser.add_argument(
        "--coordinator",
        action="append",
        default=[],
        metavar="NAME",
        help="one of the parties that may be a coordinator (may be given again; default: all may)",
    )
    parser.add_argument("--days", type=int, default=_DAYS, help=f"for how long they are valid (default {_DAYS})")


def main(args: argparse.Namespace) -> int:
    strangers = [name for name in args.coordinator if name not in args.party]
    if strangers:
        raise SettingsError(f"--coordinator {strangers[0]} is not one of the parties")
    if args.days < 1:
        raise SettingsError(f"--days {args.days}: give at least 1")
    if args.party:
        places = make_set(args.folder, args.party, coordinators=args.coordinator, days=args.days)
    else:
        places = sorted(file.parent for file in args.folder.glob(f"*/{CERTIFICATE}"))
    if not places:
        raise SettingsError(f"there are no certificates in {args.folder}: name the parties to make some")
    for place in places:
        ends = Certificates.read(place).ends().values()
        print(f"{place}: for {place.name}, {f'until {day_of(min(ends))}' if ends else UNKNOWN}")
    return 0
