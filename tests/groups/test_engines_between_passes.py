"""What DDP keeps of its last pass, as a state."""

from types import SimpleNamespace
from typing import Any

from understudy.groups.engines import Engines


def test_whether_the_next_pass_makes_buffers_equal() -> None:
    ddp: Any = SimpleNamespace(require_forward_param_sync=False)
    engines = Engines.__new__(Engines)
    engines._ddp = [ddp]
    taken = engines.state_dict()
    ddp.require_forward_param_sync = True
    engines.load_state_dict(taken)
    assert ddp.require_forward_param_sync is False
