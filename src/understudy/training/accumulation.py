"""Refuses gradient accumulation over several steps.

A step begins with the protected state and nothing else: gradients that an earlier one left behind are dropped when a
step runs again, and a replacement never had them. So a step must use up the gradients that it computes.
"""

from collections.abc import Iterator

import torch

from understudy.errors import UsageError
from understudy.state.manifest import Protected, local, parameters_of

_RIGHT_LOOP = """
    for step in job.steps(total):
        with step:
            for part in step.batch().chunk(accumulation):
                (loss_of(part) / accumulation).backward()
            optimizer.step()
            optimizer.zero_grad()
"""


def refuse_if_left_over(protected: Protected, step: int) -> None:
    """Asked when a body has run a backward pass and no optimizer. UsageError if the next step would add to its
    gradients. (Gradients that are not finite are what a scaler leaves that has skipped its optimizer.)"""
    gradients = list(_gradients(protected))
    if not any(bool(gradient.count_nonzero()) for gradient in gradients):
        return
    if all(bool(gradient.isfinite().all()) for gradient in gradients):
        raise UsageError(
            f"step {step} has computed gradients, and no optimizer has stepped: the next step would add to them. "
            "Gradients are not carried from step to step, because after a fault they would be missing. Accumulate "
            f"inside of one step, which then needs a batch that is so many times as large:\n{_RIGHT_LOOP}\n"
            "If these gradients are not wanted, call optimizer.zero_grad() at the end of the body"
        )


def _gradients(protected: Protected) -> Iterator[torch.Tensor]:
    for optimizer in (*protected.optimizers.values(), *protected.unnamed):
        for parameter in parameters_of(optimizer):
            if parameter.grad is not None:
                yield local(parameter.grad)
