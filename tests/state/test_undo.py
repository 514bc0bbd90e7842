"""What a body has done to the state is taken back, bit for bit."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from understudy.state.protected_state import Protected
from understudy.state.undo import Undo

MAKE: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=torch.tensor(0.1), foreach=False),
    "fused": lambda model: torch.optim.AdamW(model.parameters(), lr=0.1, fused=True),
    "momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    "lbfgs": lambda model: torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3),
}


def protect(kind: str) -> tuple[Protected, nn.Module, torch.optim.Optimizer, Callable[[], None]]:
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = MAKE[kind](model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    protected = Protected(
        modules={"model": model, "average": average}, optimizers={"optimizer": optimizer}, objects={"rate": scheduler}
    )
    batch = torch.randn(5, 3)

    def loss() -> float:
        optimizer.zero_grad()
        value = model(batch).square().mean()
        value.backward()
        return float(value.detach())

    def body() -> None:
        optimizer.step(loss)
        average.update_parameters(model)
        scheduler.step()

    return protected, model, optimizer, body


def digests(protected: Protected) -> tuple[str, str, str]:
    return protected.digest_parameters(), protected.digest_optimizer(), protected.digest_everything()


@pytest.mark.parametrize("kind", sorted(MAKE))
@pytest.mark.parametrize("steps_before", [0, 2])
def test_a_body_is_taken_back_and_runs_again_to_the_same_end(kind: str, steps_before: int) -> None:
    protected, _, optimizer, body = protect(kind)
    undo = Undo(protected)
    average = protected.modules["average"]
    for _ in range(steps_before):
        body()
    before, averaged = digests(protected), average.n_averaged.clone()  # type: ignore[operator]
    ends = []
    for _ in range(2):
        undo.begin()
        undo.keep(optimizer)
        body()
        undo.keep(optimizer)  # it steps twice in a body: the first copy counts
        body()
        ends.append(digests(protected))
        undo.put_back()
        average.n_averaged.copy_(averaged)  # type: ignore[operator]  # a buffer: somebody else's business
        assert digests(protected) == before
    assert ends[0] == ends[1] != before


def test_tensors_stay_where_they_are_and_copies_reuse_their_memory() -> None:
    protected, model, optimizer, body = protect("adam")
    undo = Undo(protected)
    body()

    def places() -> list[int]:
        return [tensor.data_ptr() for _, tensor in (*protected.parameters(), *protected.optimizer_tensors())]

    before = places()
    sizes = set()
    for _ in range(3):
        undo.begin()
        undo.keep(optimizer)
        sizes.add(undo.size)
        body()
        undo.put_back()
    assert len(sizes) == 1 and sizes.pop() > sum(parameter.nbytes for parameter in model.parameters())
    assert places() == before


def test_what_counts_stays() -> None:
    protected, _, optimizer, body = protect("momentum")
    undo = Undo(protected)
    undo.begin()
    undo.keep(optimizer)
    body()
    after = digests(protected)
    undo.drop()
    undo.put_back()
    assert digests(protected) == after
