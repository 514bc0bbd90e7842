"""What `--store folder:///...` brings along for `understudy run` and `understudy coordinator`: the job's secrets, and
coordinators beside agents. What flags say comes first.
"""

import argparse
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from understudy.agent.coordinator_beside import CoordinatorBeside
from understudy.agent.posts import posts_in
from understudy.cli.placed import placement_of
from understudy.cli.token_files import job_token_is_given
from understudy.coordinator import folder_trust
from understudy.coordinator.folder import SCHEME, folder_of, folder_of_job
from understudy.errors import SettingsError
from understudy.placement.placing import Placement
from understudy.wire.roles import PartyRole
from understudy.wire.transport import is_loopback

_USUAL_COORDINATORS = 2
_ELSEWHERE = "192.0.2.1", 9  # of no host: nothing is sent there, but the system says from which address it would be


def is_folder(address: str) -> bool:
    return address.partition(":")[0] == SCHEME


def check_run(args: argparse.Namespace) -> argparse.Namespace:
    """An agent with `--store` finds its coordinators there: a copy in which that counts as `--coordinator`."""
    args = argparse.Namespace(**vars(args))
    if not args.store:
        if args.coordinators is not None:
            raise SettingsError(
                f"--coordinators {args.coordinators}: they meet in a folder; give --store folder:///..."
            )
        return args
    if args.coordinator and args.coordinator != args.store:
        raise SettingsError("--store and --coordinator: give one of them; agents find the coordinators in the store")
    if not is_folder(args.store):
        raise SettingsError(
            f"--store {args.store}: agents look into no store but folder:///PATH; give the addresses of coordinators "
            "with --coordinator"
        )
    if args.coordinators is not None and args.coordinators < 0:
        raise SettingsError(f"--coordinators {args.coordinators}: must be 0 or more")
    folder_of(args.store)
    args.coordinator = args.store
    return args


def prepare_run(args: argparse.Namespace, environment: Mapping[str, str]) -> argparse.Namespace:
    """`check_run`, and what is not given: the address of this host, the folder of the run, secrets."""
    args = check_run(args)
    if args.store:
        root, placement = folder_of(args.store), placement_of(args, environment)
        args.local_addr = args.local_addr or usual_address()
        args.run_dir = args.run_dir or str(folder_of_job(root, placement.job_key) / "run")
        _complete(args, root, placement.host.value, PartyRole.AGENT)
    return args


def prepare_coordinator(args: argparse.Namespace) -> argparse.Namespace:
    """The secrets that are not given."""
    args = argparse.Namespace(**vars(args))
    if is_folder(args.store):
        _complete(args, folder_of(args.store), f"coordinator-{socket.gethostname()}", PartyRole.COORDINATOR)
    return args


def _complete(args: argparse.Namespace, root: Path, party: str, role: PartyRole) -> None:
    if args.token_file is None and not job_token_is_given():
        args.token_file = folder_trust.token_file(root)
    if args.certs is None:
        args.certs = folder_trust.certificates_of(root, party, role)


def coordinator_beside(
    given: argparse.Namespace,
    args: argparse.Namespace,
    placement: Placement,
    environment: Mapping[str, str],
    say: Callable[[str], None],
) -> CoordinatorBeside | None:
    """`given`: what the flags said; `args`: with all that was not given. None: there is no such thing in this job."""
    wanted = _USUAL_COORDINATORS if given.coordinators is None else given.coordinators
    if not args.store or not wanted:
        return None
    host, root = placement.host.value, folder_of(args.store)
    certificates = given.certs or folder_trust.certificates_of(root, f"coordinator-{host}", PartyRole.COORDINATOR)
    command = [
        *(sys.executable, "-m", "understudy", "coordinator", "--store", args.store),
        *("--job", placement.job.value, "--attempt", str(placement.attempt.value)),
        *("--listen", f"{args.local_addr}:0", "--run-dir", args.run_dir, "--log-format", args.log_format),
        *("--certs", str(certificates)),
        *(() if args.token_file is None else ("--token-file", str(args.token_file))),
    ]
    posts = posts_in(folder_of_job(root, placement.job_key), wanted)
    return CoordinatorBeside(posts, command, environment, host=host, eager=not args.spare_host, say=say)


def usual_address() -> str:
    """Under which other hosts reach this one, where no coordinator is known yet. Many systems give their own name an
    address of loopback."""
    for find in (_address_of_name, _address_of_way_out):
        try:
            found = find()
        except OSError:
            continue
        if not is_loopback(found):
            return found
    return "127.0.0.1"


def _address_of_name() -> str:
    return socket.gethostbyname(socket.gethostname())


def _address_of_way_out() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way_out:
        way_out.connect(_ELSEWHERE)
        return str(way_out.getsockname()[0])
