"""`understudy run --coordinator ...`: this host's part of a job on many hosts."""

import argparse
import asyncio
import signal

import msgspec

from understudy.agent.relay import Introduction, Relay
from understudy.agent.supervisor import Supervisor
from understudy.cli.coordinator import read_token
from understudy.cli.run_flags import RunRequest
from understudy.cli.terminal import Terminal
from understudy.detection.stall import StallWatch
from understudy.foundation.clock import SystemClock
from understudy.protocol.commands import Outcome, StopJob
from understudy.wire.certificates import Certificates


async def run_on_host(args: argparse.Namespace, request: RunRequest, terminal: Terminal) -> StopJob:
    clock = SystemClock()
    watch = StallWatch(request.policy, outside_floor=request.outside_floor)
    supervisor = Supervisor(request.plan, clock=clock, watch=watch, console=terminal.output, say=terminal.say)
    relay = Relay(
        _introduction(args, request, supervisor),
        hands=supervisor,
        addresses=[part.strip() for part in args.coordinator.split(",") if part.strip()],
        certificates=None if args.certs is None else Certificates.read(args.certs),
        clock=clock,
        say=terminal.say,
    )
    for number in request.signals:
        asyncio.get_running_loop().add_signal_handler(number, _on_signal, number, supervisor)
    try:
        stop = await supervisor.run(relay)
        await relay.close(stop.reason)
    finally:
        terminal.close()
    terminal.end(stop)
    return stop


def _on_signal(number: signal.Signals, supervisor: Supervisor) -> None:
    """Only this host's part ends; the others are told that it is gone."""
    if supervisor.stopping:
        supervisor.hurry()
    supervisor.stop(
        StopJob(outcome=Outcome.STOPPED, reason=f"{number.name} was received on this host", exit_code=128 + number)
    )


def _introduction(args: argparse.Namespace, request: RunRequest, supervisor: Supervisor) -> Introduction:
    ranks = request.policy.world_size // request.policy.hosts
    return Introduction(
        job=args.job,
        token=read_token(args.token_file),
        host=request.plan.host,
        ranks=0 if args.spare_host else ranks,
        spares=ranks if args.spare_host else args.spares,
        place=None if args.spare_host else args.node_rank,
        settings=msgspec.to_builtins(request.policy),
        store=supervisor.store_address,
        members=lambda: list(supervisor.workers),
    )
