"""Digests by sums of words: they find every change, whatever the layout, and do not depend on the order of addition."""

import pytest
import torch

from understudy.state import word_sums
from understudy.state.word_sums import CHUNK, digest_all


def digest(tensor: torch.Tensor) -> bytes:
    return digest_all([tensor])[0]


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.int8, torch.int64, torch.bool])
@pytest.mark.parametrize("count", [0, 1, 7, 8, 1000])
def test_every_changed_element_is_found(kind: torch.dtype, count: int) -> None:
    tensor = torch.arange(count).to(kind)
    before = digest(tensor)
    assert before == digest(tensor.clone())
    for place in range(0, count, 37):
        changed = tensor.clone()
        changed[place] = 1 - changed[place].to(torch.float32)
        assert digest(changed) != before


def test_what_is_moved_or_longer_is_found() -> None:
    tensor = torch.arange(1, 100, dtype=torch.int64)
    assert digest(tensor.flip(0)) != digest(tensor)
    assert digest(torch.cat([tensor, torch.zeros(1, dtype=torch.int64)])) != digest(tensor)
    assert digest(torch.zeros(3, dtype=torch.uint8)) != digest(torch.zeros(5, dtype=torch.uint8))


def test_chunks_that_change_places_are_found() -> None:
    one, other = torch.ones(CHUNK, dtype=torch.int64), torch.full((CHUNK,), 2)
    assert digest(torch.cat([one, other])) != digest(torch.cat([other, one]))


def test_layout_does_not_matter() -> None:
    tensor = torch.randn(12, 10, generator=torch.Generator().manual_seed(0))
    assert digest(tensor.t()) == digest(tensor.t().contiguous())
    assert digest(tensor[1:].reshape(-1)) == digest(tensor[1:].clone())
    flat = torch.arange(64, dtype=torch.int8)
    assert digest(flat[3:19]) == digest(flat[3:19].clone())  # begins in the middle of a word


def test_not_a_number_and_negative_zero_are_bytes_like_others() -> None:
    assert digest(torch.tensor([float("nan")])) == digest(torch.tensor([float("nan")]))
    assert digest(torch.tensor([0.0])) != digest(torch.tensor([-0.0]))


@pytest.mark.parametrize("together", [True, False])
def test_the_value_is_the_same_in_every_order_of_addition(monkeypatch: pytest.MonkeyPatch, together: bool) -> None:
    """As it is on a device with thousands of threads: reckoned here with Python's own integers."""
    tensor = torch.randn(1001, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    monkeypatch.setattr(word_sums, "_kept", {})
    monkeypatch.setattr(word_sums, "CHUNK", 2048 if together else 64)
    neighbours = [tensor[:5].clone(), torch.empty(0), tensor] if together else [tensor]
    sums = word_sums._sums(neighbours)[-1].tolist()
    words = tensor.view(torch.int64).tolist()
    streams = word_sums._odd_numbers(tensor, word_sums.CHUNK, 0).tolist()
    of_chunks = word_sums._odd_numbers(tensor, 16, word_sums.CHUNK).tolist()
    for stream, (factors, chunk_factors) in enumerate(zip(streams, of_chunks, strict=True)):
        total = sum(
            word * factors[place % word_sums.CHUNK] * chunk_factors[place // word_sums.CHUNK]
            for place, word in reversed([*enumerate(words)])
        )
        assert (total - sums[stream]) % (1 << 64) == 0


def test_what_is_reckoned_together_is_what_each_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_sums, "_kept", {})
    monkeypatch.setattr(word_sums, "CHUNK", 64)
    drawn = torch.Generator().manual_seed(2)
    tensors = [torch.randint(0, 99, (n,), generator=drawn, dtype=torch.uint8) for n in (3, 0, 8, 500, 513, 7, 2000, 1)]
    tensors.append(torch.tensor(2.5))
    assert digest_all(tensors) == [digest(tensor) for tensor in tensors]
    assert digest_all([]) == []


def test_multipliers_are_odd_and_differ() -> None:
    numbers = word_sums._odd_numbers(torch.empty(0), 100_000, 0)
    assert bool((numbers & 1).all())
    assert len(set(numbers.flatten().tolist())) == numbers.numel()
