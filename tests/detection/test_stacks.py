"""From the calls of a main thread to a phrase. The stacks are shortened copies of real ones."""

import pytest

from understudy.detection.stacks import full_text, grouped, is_waiting, place_of, ranks_text
from understudy.wire.messages import Frame, Stacks, ThreadStack

TORCH = "/venv/lib/python3.11/site-packages/torch"
OURS = "/venv/lib/python3.11/site-packages/understudy"


def calls(*lines: str) -> list[Frame]:
    """`file:line function`, the innermost first."""
    found = []
    for text in lines:
        place, _, function = text.partition(" ")
        file, _, number = place.rpartition(":")
        found.append(Frame(file=file, line=int(number), function=function))
    return found


SCRIPT = ("/home/u/train.py:41 train", "/home/u/train.py:90 main", "/home/u/train.py:99 <module>")
FORWARD = (f"{TORCH}/nn/modules/module.py:1790 _call_impl", f"{TORCH}/nn/modules/module.py:1779 _wrapped_call_impl")


@pytest.mark.parametrize(
    ("stack", "place"),
    [
        (
            (
                f"{TORCH}/distributed/distributed_c10d.py:3100 all_reduce",
                f"{TORCH}/distributed/c10d_logger.py:83 wrapper",
                *SCRIPT,
            ),
            "in all_reduce, called from train.py:41",
        ),
        (
            (
                f"{TORCH}/distributed/distributed_c10d.py:2800 broadcast",
                f"{TORCH}/distributed/c10d_logger.py:83 wrapper",
                f"{TORCH}/distributed/distributed_c10d.py:3500 broadcast_object_list",
                f"{TORCH}/distributed/c10d_logger.py:83 wrapper",
                *SCRIPT,
            ),
            "in broadcast_object_list, called from train.py:41",
        ),
        (
            (
                f"{TORCH}/autograd/graph.py:829 _engine_run_backward",
                f"{TORCH}/autograd/__init__.py:347 backward",
                f"{TORCH}/_tensor.py:580 backward",
                *SCRIPT,
            ),
            "in backward, called from train.py:41",
        ),
        (
            (
                f"{OURS}/groups/fence.py:76 _futex",
                f"{OURS}/groups/fence.py:70 meet",
                f"{OURS}/training/steps.py:110 before_optimizer",
                f"{TORCH}/optim/optimizer.py:480 wrapper",
                *SCRIPT,
            ),
            "at the fence of step 12",
        ),
        (
            ("/usr/lib/python3.11/queue.py:171 get", f"{TORCH}/utils/data/dataloader.py:1200 _get_data", *SCRIPT),
            "in the data loader, called from train.py:41",
        ),
        (
            ("/home/u/data.py:7 __getitem__", f"{OURS}/training/data/step_data.py:50 batch", *SCRIPT),
            "in __getitem__ at data.py:7 (the data loader)",
        ),
        (("/home/u/model.py:7 forward", *FORWARD, *SCRIPT), "in forward at model.py:7"),
        ((f"{TORCH}/nn/functional.py:9 linear", *FORWARD, *SCRIPT), "in forward, called from train.py:41"),
        ((f"{TORCH}/optim/adamw.py:9 step", *SCRIPT), "in the optimizer, called from train.py:41"),
        (
            ("/usr/lib/python3.11/threading.py:331 wait", f"{OURS}/training/control.py:99 await_plan", *SCRIPT),
            "in a recovery, waiting for word from the coordinator",
        ),
        (SCRIPT, "in train at train.py:41"),
        (("/usr/lib/python3.11/queue.py:171 get", *SCRIPT), "in train at train.py:41"),
        ((f"{TORCH}/cuda/__init__.py:9 synchronize",), "in synchronize at __init__.py:9"),
        ((), "in no Python code"),
    ],
)
def test_where_a_rank_stands(stack: tuple[str, ...], place: str) -> None:
    assert place_of(calls(*stack), step=12) == place


def test_the_wait_for_gradients_has_a_name_of_its_own() -> None:
    stack = calls(f"{TORCH}/autograd/graph.py:829 _engine_run_backward", *SCRIPT)
    place = place_of(stack, step=12, in_gradient_wait=True)
    assert place == "in backward (gradient synchronisation), called from train.py:41"


def test_a_rank_that_waits_for_its_device_at_the_fence_waits() -> None:
    """It asks whether contact is lost while it does. Taken for busy, nobody would look for the rank it waits for."""
    asking = (f"{OURS}/groups/families/abortable.py:65 {name}" for name in ("<listcomp>", "_connected", "<genexpr>"))
    above = (f"{OURS}/groups/device_fence.py:27 comes_to_its_end", f"{OURS}/groups/device_fence.py:45 meet")
    frames = calls(*asking, f"{OURS}/training/contact.py:47 lost", *above, *SCRIPT)
    assert is_waiting(frames) and place_of(frames, step=7) == "at the fence of step 7"
    flag = f"{OURS}/groups/device_side_fence.py:58 await_flag"
    frames = calls(f"{OURS}/training/contact.py:47 lost", flag, f"{OURS}/training/running_ahead.py:205 know", *SCRIPT)
    assert is_waiting(frames) and place_of(frames, step=7) == "at the fence of step 7"
    assert not is_waiting(calls(*FORWARD, *SCRIPT))


def test_ranks_in_the_same_place_share_a_line() -> None:
    assert grouped({0: "here", 1: "there", 2: "here", 3: "here", 5: "here"}) == [
        "ranks 0, 2-3, 5: here",
        "rank 1: there",
    ]
    assert ranks_text([4]) == "rank 4"
    assert grouped({}) == []


def test_the_full_text_reads_like_a_traceback() -> None:
    stacks = Stacks(number=1, threads=[ThreadStack(name="MainThread", frames=calls("/a.py:1 inner", "/a.py:9 outer"))])
    assert full_text("rank 0", stacks).splitlines() == [
        "rank 0",
        "  MainThread:",
        '    File "/a.py", line 9, in outer',
        '    File "/a.py", line 1, in inner',
    ]
