"""CUDA devices. Untested: no GPU was at hand. Written from torch's documentation, and tried with stand-ins only.

One process uses one device, the one that it takes. Engines let the current stream wait for theirs before an optimizer
steps (DDP's reducer at the end of the backward pass, FSDP2 in its last callback), so an event on the current stream is
behind all gradients. A script that keeps gradients on a stream of its own must do the same.

Whether a context survives what happens in its neighbours, how long kernels need to come to an end once their
communicator is broken, and what a drain costs, was never seen.
"""

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence

import torch

from understudy.devices import nodes, views
from understudy.devices.pinned import PinnedNumber, PinnedWord
from understudy.errors import DeviceLost


class CudaEvent:
    def __init__(self, is_lost: Callable[[BaseException], bool]) -> None:
        self._is_lost = is_lost
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._event.record()

    def complete(self) -> bool:
        try:
            return bool(self._event.query())  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            if self._is_lost(error):
                raise DeviceLost(f"its event cannot be asked: {error}") from error
            raise


class Cuda:
    contract_version = 2
    name = "cuda"
    asynchronous = True

    def __init__(self) -> None:
        self._where = torch.device("cuda", 0)
        self._copying: torch.cuda.Stream | None = None
        self._pinned: set[int] = set()  # addresses

    def present(self) -> bool:
        return torch.cuda.is_available()

    def objection(self, environment: Mapping[str, str]) -> str | None:
        if environment.get("CUDA_MPS_PIPE_DIRECTORY"):
            return (
                "the processes of this device share one context (MPS: CUDA_MPS_PIPE_DIRECTORY is set), so that a fatal "
                "fault of one of them ends all; give each process a device of its own"
            )
        return None

    def spoilt_by_fork(self) -> bool:
        return bool(torch.cuda._is_in_bad_fork())

    def touched(self) -> bool:
        return bool(torch.cuda.is_initialized()) or nodes.computes()  # type: ignore[no-untyped-call]

    def view(self, devices: Sequence[str], own: int, at: int) -> Mapping[str, str]:
        return {views.VARIABLE: views.arranged(devices, own, at)}

    def take(self, local_rank: int) -> torch.device:
        """Made current, and nothing more: a group that is bound to a device is split into children which could not be
        formed again."""
        self._where = torch.device("cuda", local_rank)
        torch.cuda.set_device(self._where)
        return self._where

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.device == self._where

    def bring(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._where)

    def pin(self, memory: torch.Tensor) -> None:
        """Where that is not possible copies are as right, and slower."""
        trouble = int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0))  # type: ignore[no-untyped-call]
        if trouble:
            warnings.warn(
                f"copies to host memory will be slow: it cannot be pinned (CUDA error {trouble})", stacklevel=2
            )
        else:
            self._pinned.add(memory.data_ptr())

    def unpin(self, memory: torch.Tensor) -> None:
        if memory.data_ptr() in self._pinned:
            self._pinned.discard(memory.data_ptr())
            torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())  # type: ignore[no-untyped-call]

    def copy_to_host(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> CudaEvent:
        """On a stream of its own, so that the next step does not wait for it."""
        if self._copying is None:
            self._copying = torch.cuda.Stream(self._where)  # type: ignore[no-untyped-call]
        self._copying.wait_stream(torch.cuda.current_stream(self._where))
        with torch.cuda.stream(self._copying):
            for source, landing in pairs:
                landing.copy_(source, non_blocking=True)
            return CudaEvent(self.is_lost)

    def record(self) -> CudaEvent:
        return CudaEvent(self.is_lost)

    def drain(self, within: float | None) -> None:
        self._do(lambda: torch.cuda.synchronize(self._where), within, "its queue did not come to rest")

    def probe(self, within: float) -> None:
        self._do(self._compute, within, "it did not answer a probe")

    def _compute(self) -> None:
        if torch.ones(2, device=self._where).sum().item() != 2.0:
            raise DeviceLost("it adds up wrong")

    def _do(self, what: Callable[[], object], within: float | None, otherwise: str) -> None:
        """In a thread that can be left behind: the process ends then."""
        if within is None:
            self._try(what)
            return
        over, trouble = threading.Event(), list[BaseException]()

        def run() -> None:
            try:
                self._try(what)
            except BaseException as error:
                trouble.append(error)
            over.set()

        threading.Thread(target=run, name="understudy-device", daemon=True).start()
        if not over.wait(within):
            raise DeviceLost(f"{otherwise} within {within:g} s")
        if trouble:
            raise trouble[0]

    def _try(self, what: Callable[[], object]) -> None:
        try:
            what()
        except RuntimeError as error:
            raise DeviceLost(f"{type(error).__name__}: {error}") from error

    def word(self) -> PinnedWord:
        return PinnedWord(self._where)

    def fetch(self, number: torch.Tensor) -> PinnedNumber:
        host = torch.empty(number.shape, dtype=number.dtype, pin_memory=True)
        host.copy_(number, non_blocking=True)
        return PinnedNumber(host, self.record())

    def is_lost(self, error: BaseException) -> bool:
        """CUDA repeats a fatal error at every later call of the process. Running out of memory is another type."""
        return isinstance(error, torch.AcceleratorError)

    def seed(self, value: int) -> None:
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.manual_seed_all(value)

    def random_streams(self) -> list[torch.Tensor]:
        """Of the device that was taken; to ask for those of all would make contexts on all."""
        return [torch.cuda.get_rng_state(self._where)] if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]

    def set_random_streams(self, streams: Sequence[torch.Tensor]) -> None:
        torch.cuda.set_rng_state(streams[0], self._where)
