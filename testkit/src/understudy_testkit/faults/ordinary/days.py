"""The table: every ordinary or unusual day, and how it must end."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from understudy_testkit.faults.ordinary import coordinators_away, outside
from understudy_testkit.faults.ordinary.outside import Act
from understudy_testkit.faults.watching import LiveRun

Mount = Callable[[Path], AbstractContextManager[object]]
PAUSED_AT = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`disturb`: what happens inside of the script; `act`: from outside, given the folder of the row.
    `replaced`: ranks that must have been replaced, `may_replace`: that may be; no other rank may.
    `refused`: words with which the job must end instead of training. `swap_refused`: words with which the swap must be
    refused; the job ends well without that rank, at the same global batch.
    `by_parameters`: the ledger cannot be whole, so final parameters are compared instead.
    `found_within`: seconds from the last sign of life to the decision."""

    name: str
    shape: str = "plain"
    ranks: int = 2
    spares: int = 1
    steps: int = 16
    step_time: float = 0.02
    disturb: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    act: Callable[[Path], Act] | None = None
    mount: Mount = lambda _folder: nullcontext()
    play: Callable[[Path], str] | None = None  # a day on several hosts, with a judgement of its own
    replaced: tuple[int, ...] = ()
    may_replace: tuple[int, ...] = ()
    refused: str = ""
    swap_refused: str = ""
    says: str = ""
    by_parameters: bool = False
    found_within: float | None = None
    longest: float = 180.0  # seconds; more is a job that does not end
    quick: bool = False


def pauses() -> Iterator[Row]:
    for seconds in (5, 30, 120):
        for place in ("body", "loader", "between"):
            for scope, ranks in (("one rank", "1"), ("a replica", "0,1"), ("all ranks", "0,1")):
                replica = scope == "a replica"
                late = seconds > 60 and place != "between" and scope != "all ranks"
                yield Row(
                    name=f"{seconds} s {'between' if place == 'between' else f'in the {place}'}, {scope}",
                    shape="sharded" if replica else "plain",
                    ranks=4 if replica else 2,
                    spares=2 if replica else 1,
                    disturb=(f"{seconds}@{place}:{PAUSED_AT}:{ranks}",),
                    may_replace=((0, 1) if replica else (1,)) if late else (),
                    longest=180.0 + 2 * seconds,
                    quick=(seconds, place, scope) == (5, "body", "all ranks"),
                )
    yield Row(
        name="10 minutes in the body, all ranks, default flags",
        disturb=(f"600@body:{PAUSED_AT}:0,1",),
        longest=900.0,
    )


def stops() -> Iterator[Row]:
    def rank(job: LiveRun) -> int:
        return outside.rank_process(job, 1)

    for seconds in (1, 5, 60):
        yield Row(
            name=f"SIGSTOP of a rank for {seconds} s",
            steps=300,
            act=lambda _, seconds=seconds: outside.stop(rank, seconds),  # type: ignore[misc]
            replaced=(1,) if seconds > 3 else (),
            found_within=3.5 if seconds > 3 else None,  # 3 s, and the moments that a busy machine takes
        )
    others = (("spare", outside.spare_process), ("agent", outside.agent_process), ("store", outside.store_process))
    for name, which in others:
        for seconds in (5, 60):
            yield Row(
                name=f"SIGSTOP of the {name} for {seconds} s",
                steps=300,
                act=lambda _, which=which, seconds=seconds: outside.stop(which, seconds),  # type: ignore[misc]
            )
    yield Row(
        name="a debugger attached to a rank for a minute",
        steps=300,
        act=lambda _: outside.trace(1, 60),
    )
    yield Row(name="the clock an hour forth, two back, and right again", steps=400, act=lambda _: outside.set_clock())


def ends() -> Iterator[Row]:
    for before in (3, 2, 1):
        yield Row(
            name=f"a rank killed in step {16 - before} of 16",
            disturb=(f"kill@body:{16 - before}:1",),
            replaced=(1,),
            quick=before == 1,
        )
    for step in range(12, 16):
        yield Row(
            name=f"a bit flipped in step {step} of 16",
            ranks=4,
            flags=("--check-replicas-every", "4"),
            disturb=(f"flip@optimizer:{step}:1",),
            replaced=(1,),
        )


def shapes() -> Iterator[Row]:
    def killed(name: str, shape: str, place: str = "body", step: int = 7) -> Row:
        return Row(name=name, shape=shape, disturb=(f"kill@{place}:{step}:1",), replaced=(1,))

    yield killed("accumulation in one step, killed in the middle of it", "accumulating", "accumulation")
    yield Row(
        name="accumulation over several steps",
        shape="accumulating-over-steps",
        refused="accumulat",
        quick=True,
    )
    yield killed("a closure, killed inside of it", "closure", "closure")
    yield killed("GAN, killed between its optimizers", "gan", "between-optimizers")
    yield killed("GAN, killed before its second optimizer", "gan", "second-optimizer")
    yield killed("GAN with batch norm, killed between its optimizers", "normed-gan", "between-optimizers")
    yield Row(
        name="GAN under HSDP, killed between its optimizers",
        shape="sharded-gan",
        ranks=4,
        disturb=("kill@between-optimizers:7:1",),
        replaced=(1,),
    )
    yield killed("GAN in alternating steps, killed in an even one", "alternating", step=8)
    yield killed("GAN in alternating steps, killed in an odd one", "alternating", step=9)
    yield killed("a scaler that skips its first steps", "scaler", step=9)
    yield Row(
        name="warm-up from learning rate 0, killed in step 1",
        shape="warm-up",
        disturb=("kill@body:1:1",),
        may_replace=(1,),  # nothing is trained yet, so the world may as well start over
    )
    yield killed("warm-up from learning rate 0", "warm-up")
    yield killed("batch norm", "batch-norm")
    yield killed("batch norm with statistics of each rank", "local-batch-norm")
    yield killed("loader with workers and prefetch, epochs told to the sampler", "workers")
    yield killed("threads that open and close connections", "threads")
    yield killed("a compiled model, compiled again in the middle", "recompiling", step=9)
    yield Row(name="HSDP, killed in the body", shape="sharded", ranks=4, disturb=("kill@body:7:1",), replaced=(1,))
    yield Row(
        name="a replacement that resumes from a newer checkpoint of its own",
        shape="resuming",
        steps=24,
        disturb=("kill@body:9:1",),
        swap_refused="its total of steps is",
    )


def between_steps() -> Iterator[Row]:
    impatient = ("--step-timeout-min", "2", "--busy-timeout", "5")
    yield Row(
        name="an evaluation longer than every deadline in a step",
        shape="evaluating",
        flags=impatient,
        disturb=("20@evaluation:7:0,1",),
        says="the script communicates between steps (allreduce, called from script.py:",
    )
    for place, rank in (("evaluation", 1), ("evaluation", 0), ("second-collective", 1), ("after-evaluation", 1)):
        yield Row(
            name=f"rank {rank} killed between steps, {place.replace('-', ' ')}",
            shape="evaluating",
            disturb=(f"kill@{place}:7:{rank}",),
            replaced=(rank,),
        )
    for place, rank in (("evaluation", 1), ("evaluation", 0), ("after-evaluation", 1)):
        yield Row(
            name=f"a scheduler stepped between steps, rank {rank} killed there, {place.replace('-', ' ')}",
            shape="scheduled",
            disturb=(f"kill@{place}:7:{rank}",),
            replaced=(rank,),
        )
    yield Row(
        name="an evaluation that is longer on one rank",
        shape="evaluating",
        flags=impatient,
        disturb=("20@evaluation:7:1",),
    )
    yield Row(
        name="rank 0 writes its checkpoint for 20 s",
        shape="saving",
        flags=impatient,
        disturb=("20@saving:7:0",),
    )
    yield Row(name="a recompile in the middle", shape="recompiling", flags=impatient)


def disks() -> Iterator[Row]:
    acts: tuple[tuple[str, Callable[[Path], Act]], ...] = (
        ("full", outside.fill),
        ("read-only", outside.make_read_only),
        ("15 s slow", lambda folder: outside.freeze(folder, 15)),
    )
    for where in ("run", "log", "checkpoint"):
        for how, act in acts:
            flags = {
                "run": ("--run-dir", "{disk}/run"),
                "log": ("--log-dir", "{disk}/logs", "--tee", "3"),
                "checkpoint": ("--checkpoint-dir", "{disk}/saved", "--checkpoint-every", "10"),
            }[where]
            yield Row(
                name=f"disk {how} under the {where} folder",
                steps=400,
                flags=flags,
                mount=outside.disk,
                act=act,
                by_parameters=where == "run",
            )


def mistakes() -> Iterator[Row]:
    yield Row(name="the script raises", shape="raising", refused="a mistake of the script")
    yield Row(name="wrong shapes", shape="wrong-shapes", refused="shapes cannot be multiplied")
    yield Row(name="no `with step`", shape="without-with", refused="with step")
    yield Row(name="init_process_group beside join", shape="initialising", refused="init_process_group")


def coordinators() -> Iterator[Row]:
    yield Row(
        name="coordinators away for 3 minutes, and a rank killed meanwhile",
        play=lambda folder: coordinators_away.away_during_a_fault(folder, 180),
    )
    yield Row(
        name="a coordinator cut off from all hosts for 10 s",
        play=lambda folder: coordinators_away.cut_off(folder, 10),
    )


def table() -> list[Row]:
    return [
        *(*pauses(), *stops(), *ends(), *shapes(), *between_steps()),
        *(*disks(), *mistakes(), *coordinators()),
    ]
