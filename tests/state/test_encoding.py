import collections
import enum
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.errors import ProtectError
from understudy.state.encoding import flatten, unflatten


def there_and_back(value: Any) -> Any:
    tensors: list[torch.Tensor] = []
    sent = msgspec.msgpack.encode(flatten(value, "state", tensors))
    return unflatten(msgspec.msgpack.decode(sent, strict=False), tensors)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text() | st.integers(-(2**63), 2**64 - 1), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(plain)
def test_plain_data_comes_back_equal_with_the_same_types(value: Any) -> None:
    back = there_and_back(value)
    assert back == value
    assert repr(back) == repr(value)


def test_tensors_stay_where_they_were() -> None:
    first, second = torch.arange(3), torch.tensor(2.5)
    value = {"a": [first, (second, {"deep": first}, 1)], 7: "seven", "none": None, "set": {1, 2}}
    back = there_and_back(value)
    assert back["a"][0] is first and back["a"][1][0] is second and back["a"][1][1]["deep"] is first
    assert isinstance(back["a"][1], tuple)
    assert (back[7], back["none"], back["set"]) == ("seven", None, {1, 2})


def test_lists_that_look_like_our_own_marks_are_safe() -> None:
    for value in (["t", 0], ["d", []], ["u", "tuple", [1]], ("t", 0), {"t": ["t", 1]}):
        assert there_and_back(value) == value


def test_numpy_scalars_become_numbers() -> None:
    assert there_and_back({"best": np.float64(0.25), "count": np.int64(3)}) == {"best": 0.25, "count": 3}


class Phase(str, enum.Enum):  # noqa: UP042 (scripts still write it so)
    WARM_UP = "warm-up"


class Level(enum.IntEnum):
    HIGH = 2


def test_an_enumeration_of_plain_values_becomes_the_value() -> None:
    back = there_and_back([Phase.WARM_UP, Level.HIGH])
    assert back == ["warm-up", 2] and [type(item) for item in back] == [str, int]


def test_ordered_dictionaries_keep_their_order() -> None:
    value = collections.OrderedDict(z=1, a=2)
    assert list(there_and_back(value)) == ["z", "a"]


class Pair(NamedTuple):
    left: int
    right: int


@pytest.mark.parametrize("value", [Pair(1, 2), torch.Size([3, 4])])
def test_a_named_tuple_comes_back_as_a_tuple(value: tuple[int, ...]) -> None:
    back = there_and_back(value)
    assert isinstance(back, tuple) and back == tuple(value)


@pytest.mark.parametrize("thing", [object(), lambda: None, np.zeros(3), torch.float32, frozenset({1})])
def test_what_cannot_be_sent_is_refused_with_its_path(thing: Any) -> None:
    with pytest.raises(ProtectError, match=r"state\.outer\[1\]\.inner is a .*without pickle"):
        flatten({"outer": [0, {"inner": thing}]}, "state", [])


def test_a_key_that_cannot_be_sent_is_refused_with_its_path() -> None:
    with pytest.raises(ProtectError, match=r"state\.outer has a key of type tuple"):
        flatten({"outer": {(1, 2): 0}}, "state", [])


def test_the_state_of_a_numpy_generator_can_be_sent() -> None:
    state = np.random.default_rng(5).bit_generator.state  # numbers of 128 bits
    assert there_and_back(state) == state


@pytest.mark.parametrize("noise", [["x"], [], ["d", 5], ["t", "zero"], [1, 2]])
def test_malformed_state_is_refused(noise: list[Any]) -> None:
    with pytest.raises(ProtectError, match="malformed"):
        unflatten(noise, [])
