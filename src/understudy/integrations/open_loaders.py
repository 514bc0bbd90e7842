"""Which loaders Accelerate believes are being read, as a state: an evaluation that is cut short leaves its own."""

from typing import Any


class OpenLoaders:
    """Of `accelerator.gradient_state`, which asks the last of them whether an epoch is at its end."""

    def __init__(self, gradient_state: Any) -> None:
        self._gradients = gradient_state

    def state_dict(self) -> dict[str, Any]:
        return {"count": len(self._gradients.dataloader_references)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._gradients.dataloader_references = self._gradients.dataloader_references[: state["count"]]
