"""Windows: parts run again in place, and a joiner goes through a window that counts already."""

from types import SimpleNamespace
from typing import Any

import pytest

from understudy.errors import StepAbandoned, TransferError, UsageError
from understudy.training.job import Job
from understudy.training.loop_state import LoopState, Mark, Record, packed
from understudy.training.windows import Window


class Attempts:
    """Stands in for `WindowStep`: each attempt ends as a test has said."""

    def __init__(self) -> None:
        self.outcomes: list[str] = []  # of recoveries: again, counts, back
        self.begun: list[int] = []
        self.refuses = 0  # times that a fence at the end is cut short
        self.member: Any = None

    def __call__(self, member: Any, number: int, attempt: int, _prepare: Any, arrive: Any) -> Any:
        self.begun.append(attempt)
        step = SimpleNamespace(number=number, attempt=attempt, committed=False, torn=False, inside=False)

        def leave(_kind: Any, error: BaseException | None, _trace: Any) -> bool:
            if error is None and not self.refuses:
                arrive()
                step.committed = True
                member.status.holds = number + 1
                return False
            if error is not None and not isinstance(error, StepAbandoned):
                return False
            self.refuses -= error is None
            outcome = self.outcomes.pop(0)
            member.status.abandoned = False
            member.status.holds = {"again": number, "counts": number + 1, "back": number - 1}[outcome]
            return True

        step.__dict__.update(__enter__=lambda: None, __exit__=leave, before_optimizer=arrive, applied=arrive)
        return step


class Worker:
    """A member in a loop of windows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, joiner: bool = False) -> None:
        self.attempts, self.loop = Attempts(), SimpleNamespace(count=0)
        self.seeds: list[tuple[int, int]] = []
        self.said: list[str] = []
        self.reported: list[BaseException] = []
        self.switch = SimpleNamespace(sync=True)
        self.put_back = 0
        self.told: list[Any] = []
        self.small: list[bytes] = []
        status = SimpleNamespace(
            holds=0, abandoned=False, joiner=joiner, in_section=False, in_steps=False, in_tail=False,
            go_on_between_steps=lambda: None, phase=lambda _name: None,
        )  # fmt: skip
        self.status = status
        body = SimpleNamespace(
            protected=SimpleNamespace(save="its own", loop=None, forget_gradients=lambda: None),
            engines=SimpleNamespace(switches=lambda: [(self.switch, "sync", self.switch.sync)]),
            remember=lambda: None, put_back=self._put_back, forget=lambda: None,
            small=SimpleNamespace(read=lambda: b"small", put=self.small.append),
        )  # fmt: skip
        self.member: Any = SimpleNamespace(
            status=status, body=body, loop=LoopState(),
            recovery=SimpleNamespace(come_back_to_loop=lambda: None, recover=self._recover),
            control=SimpleNamespace(begin_step=lambda _number: True, note=self.said.append),
            errors=SimpleNamespace(report=lambda error, _step: self.reported.append(error), failed=False),
            checkpoints=SimpleNamespace(resume=lambda: None),
            shutdown=SimpleNamespace(finish=lambda: True),
            tail=SimpleNamespace(foretell=self.told.extend, foretold=0),
            world=SimpleNamespace(rank=0),
        )  # fmt: skip
        self.recoveries = 0
        monkeypatch.setattr("understudy.training.windows.WindowStep", self.attempts)
        monkeypatch.setattr("understudy.training.windows.atexit.register", lambda _call: None)
        seed = lambda number, part: self.seeds.append((number, part))  # noqa: E731
        member: Any = self.member
        self.window = Window(member, lambda _number: None, seed, lambda _step: None)
        self.window.state.carry("loop", self.loop)

    def _recover(self) -> None:
        self.recoveries += 1
        self.status.abandoned = False

    def _put_back(self) -> None:
        self.put_back += 1


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    found = Worker(monkeypatch)
    found.window.enter(lambda: None)
    return found


def faulty(worker: Worker, *turns: int) -> Any:
    """Is cut short in these of its runs."""
    runs: list[int] = []

    def part(value: int = 0) -> int:
        worker.loop.count += 1
        runs.append(value)
        if len(runs) in turns:
            raise StepAbandoned("a rank was lost")
        return value

    part.__dict__["runs"] = runs
    return part


def test_earlier_parts_run_again_in_order_with_the_same_arguments(worker: Worker) -> None:
    worker.attempts.outcomes = ["again"]
    first, second = faulty(worker), faulty(worker, 1)
    assert worker.window.part(first)(5) == 5
    worker.loop.count += 10  # the loop's own code, which does not run again
    assert worker.window.part(second)(6) == 6
    worker.window.commit()
    assert first.runs == [5, 5] and second.runs == [6, 6]
    assert worker.loop.count == 12, "each part counted once"
    assert worker.seeds == [(0, 0), (0, 1), (0, 0), (0, 1)] and worker.attempts.begun == [0, 1]


def test_switches_around_a_part_belong_to_it(worker: Worker) -> None:
    worker.attempts.outcomes = ["again"]
    seen: list[bool] = []
    worker.switch.sync = False
    worker.window.part(lambda: seen.append(worker.switch.sync))()
    worker.switch.sync = True
    worker.window.part(faulty(worker, 1))()
    assert seen == [False, False] and worker.switch.sync is True


def test_what_engines_keep_of_a_pass_is_carried(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(monkeypatch)
    engines = worker.member.body.engines
    engines.makes_equal = True
    worker.window.enter(lambda: None)
    before = worker.window.state.take()
    engines.makes_equal = False  # a pass without gradients
    worker.window.state.put(before)
    assert engines.makes_equal is True


def test_faults_may_come_again_and_again_and_at_the_commit(worker: Worker) -> None:
    worker.attempts.outcomes = ["again"] * 4
    worker.attempts.refuses = 1
    part = faulty(worker, 1, 2, 4)
    worker.window.part(part)()
    worker.window.commit()
    assert len(part.runs) == 5 and worker.attempts.outcomes == []
    assert worker.status.holds == 1 and worker.attempts.begun == [0, 1, 2, 3, 4]


def test_what_counts_already_is_dropped(worker: Worker) -> None:
    worker.attempts.outcomes = ["counts"]
    assert worker.window.part(faulty(worker, 1))() is None
    assert worker.window.part(lambda: pytest.fail("it is dropped"))() is None
    worker.window.commit()
    assert worker.put_back == 1 and "the rest of step 0" in worker.said[-1]
    assert worker.window.part(lambda: 3)() == 3, "the next window"


def test_a_loop_cannot_go_back(worker: Worker) -> None:
    worker.window.step(lambda: None)()
    worker.attempts.outcomes = ["back"]
    with pytest.raises(UsageError, match="a loop of windows cannot go back"):
        worker.window.part(faulty(worker, 1))()
    assert len(worker.reported) == 1


def test_an_error_of_the_script_is_its_own(worker: Worker) -> None:
    def wrong() -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        worker.window.part(wrong)()


def test_a_call_knows_whether_it_would_be_called_again(worker: Worker) -> None:
    assert not worker.window.runs_a_part
    assert worker.window.part(lambda: worker.window.runs_a_part)() is True
    worker.window.commit()
    assert not worker.window.runs_a_part


def test_a_loader_may_end_in_a_part(worker: Worker) -> None:
    window, items = worker.window, iter([1])
    assert window.part(next)(items) == 1
    with pytest.raises(StopIteration):
        window.part(next)(items)
    window.commit()
    assert worker.status.holds == 1


def test_a_part_that_changes_its_arguments_is_refused(worker: Worker) -> None:
    worker.attempts.outcomes = ["again"]
    worker.window.part(lambda batch: batch.append(1))([0])
    with pytest.raises(UsageError, match="part 0 of step 0 has changed what it was given"):
        worker.window.part(faulty(worker, 1))()


def test_parts_within_parts_and_sections_are_the_function_alone(worker: Worker) -> None:
    window = worker.window
    assert window.part(window.part(lambda: 7))() == 7
    window.commit()
    worker.status.in_section = True
    assert window.part(lambda: 8)() == 8
    window.commit()
    assert worker.seeds == [(0, 0)] and worker.status.holds == 1


def test_the_contents_of_a_window_are_told_to_the_ledger(worker: Worker) -> None:
    worker.window.part(lambda _model, batch: len(batch))(object(), [1, 2])
    one = worker.window.sample_ids(0, 0, 1)
    assert len(one) == 1 and worker.window.sample_ids(1, 0, 1) == []
    worker.window.commit()
    worker.window.part(lambda _model, batch: len(batch))(object(), [1, 3])
    assert worker.window.sample_ids(1, 0, 1) != one


def test_enter_comes_first_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    window = Worker(monkeypatch).window
    with pytest.raises(UsageError, match=r"call job.enter\(\) before the loop"):
        window.part(int)()
    window.enter(lambda: None)
    with pytest.raises(UsageError, match="a process has one loop"):
        window.enter(lambda: None)


class Joining(Worker):
    """A joiner behind its rehearsal; `records`: what its predecessor has left."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *records: Record, in_tail: bool = False) -> None:
        super().__init__(monkeypatch, joiner=True)
        self.status.holds, self.status.in_tail = 4, in_tail
        self.window._entered = True
        by_window = {record.window: record for record in records}
        monkeypatch.setattr(self.window.state, "find", by_window.get)

    def find_place(self) -> int:
        self.window._find_place(self.member)
        return self.window._number

    def counted(self, count: int) -> bytes:
        state = LoopState()
        state.carry("loop", SimpleNamespace(count=count))
        return state.take()


def test_a_joiner_begins_the_window_that_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Joining(monkeypatch)
    record = Record(4, worker.counted(17))
    monkeypatch.setattr(worker.window.state, "find", {4: record, 3: Record(3, worker.counted(1))}.get)
    assert worker.find_place() == 4 and worker.loop.count == 17
    worker.loop.count += 1  # the loop comes to its first part
    worker.window.part(lambda: None)()
    assert worker.loop.count == 17 and worker.seeds == [(4, 0)]


def test_a_joiner_goes_through_a_window_that_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Joining(monkeypatch)
    parts = [Mark(worker.counted(10), packed(0.25)), Mark(worker.counted(10))]
    sections = [Mark(worker.counted(30), packed("found"), "evaluate")]
    record = Record(3, worker.counted(10), parts, worker.counted(11), b"small", None, sections)
    monkeypatch.setattr(worker.window.state, "find", {3: record}.get)
    assert worker.find_place() == 3 and not worker.window.is_real
    assert worker.told == [("evaluate", packed("found"))] and worker.small == [b"small"]
    never = lambda: pytest.fail("it counts already")  # noqa: E731
    assert worker.window.part(never)() == 0.25
    assert worker.window.part(never)() is None and worker.loop.count == 11
    worker.loop.count += 1
    worker.window.commit()
    assert worker.loop.count == 12 and worker.put_back == 1 and worker.window.is_real
    worker.window.part(lambda: None)()
    assert worker.seeds == [(4, 0)]


def test_sections_that_run_again_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Joining(monkeypatch, in_tail=True)
    record = Record(3, worker.counted(1), [], None, b"", worker.counted(2), [Mark(worker.counted(3), None, "evaluate")])
    monkeypatch.setattr(worker.window.state, "find", {3: record, 4: Record(4, worker.counted(9))}.get)
    assert worker.find_place() == 3 and record.sections == [] and worker.told == []
    worker.window.commit()
    assert worker.loop.count == 2


def test_a_joiner_without_a_record_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TransferError, match="carried in its loop before step 4 was not kept"):
        Joining(monkeypatch).find_place()


def test_without_protection_parts_run_once_and_are_seeded() -> None:
    seeds: list[tuple[int, int]] = []
    window = Window(None, lambda _n: None, lambda *place: seeds.append(place), lambda _step: None)
    assert window.enter(lambda: pytest.fail("only a joiner rehearses")) == 0
    assert window.step(lambda x: x + 1)(1) == 2 and window.part(lambda: 3)() == 3
    window.fence()
    window.applied()
    window.commit()
    assert seeds == [(0, 0), (1, 0), (1, 1), (1, 2)]
    window.finish()


def test_what_does_not_go_with_windows_is_said() -> None:
    def job(**more: Any) -> Job:
        given = {"rank": 0, "local_rank": 0, "world_size": 1, "seed": 0, "tracked": False, "member": None, **more}
        return Job(device=SimpleNamespace(), **given)  # type: ignore[arg-type]

    with pytest.raises(UsageError, match="windows seed every part"):
        job(tracked=True).enter(lambda: None)
    with_data = job()
    with_data.protect(data=lambda step, _rank, _world_size: step)
    with pytest.raises(UsageError, match=r"job.rewinding\(loader\)"):
        with_data.enter(lambda: None)
    looped = job()
    iter(looped.steps(1))
    with pytest.raises(UsageError, match="a process has one loop"):
        looped.enter(lambda: None)
