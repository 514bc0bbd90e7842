"""A shim of the test equipment: Accelerate shards models on CPUs too. Nothing of the product does this.

Accelerate 1.15 takes an FSDP plugin only where it finds GPUs and the like (`AcceleratorState` asks whether its
`distributed_type` is MULTI_GPU, MULTI_XPU, ...): on CPUs it goes on with DDP and says nothing. FSDP2 itself works with
gloo. So the state is told, once it is made, what it would have been told on GPUs.
"""

from typing import Any


def allow() -> None:
    """Call it before an `Accelerator` or a `Trainer` is made."""
    from accelerate.state import AcceleratorState, PartialState
    from accelerate.utils import DistributedType

    make: Any = AcceleratorState.__init__

    def make_sharded(state: Any, *args: Any, fsdp_plugin: Any = None, **kwargs: Any) -> None:
        make(state, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is not None and state.distributed_type == DistributedType.MULTI_CPU:
            state.distributed_type, state.fsdp_plugin = DistributedType.FSDP, fsdp_plugin
            PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    AcceleratorState.__init__ = make_sharded
