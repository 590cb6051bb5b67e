"""Copies from GPUs into a slot: pinned memory, a stream of their own, pieces small enough not to hold up training's.

UNTESTED on a GPU: written against torch.cuda's documentation, on a machine that has none. All that decides what is
copied where is in staging.py and tested on the CPU; here are only the calls to CUDA.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import logger

CHUNK = 64 << 20
"""Bytes copied at once: the training's own copies from the same device queue behind one chunk, not behind all."""


class DeviceCopies:
    """Streams by device, and the slots that are pinned."""

    def __init__(self) -> None:
        self._streams: dict[Any, Any] = {}
        self._pinned: dict[int, int] = {}
        """Slot to address."""
        self._warned = False

    def pin(self, slot: int, address: int, size: int) -> None:
        """Register the slot with CUDA: only then is a copy a DMA transfer that runs beside everything else."""
        import torch

        self.unpin(slot)
        error = int(torch.cuda.cudart().cudaHostRegister(address, size, 0))
        if not error:
            self._pinned[slot] = address
        elif not self._warned:  # RLIMIT_MEMLOCK, say: slower, and right all the same
            self._warned = True
            logger().warning(f"checkpoint memory could not be pinned (CUDA error {error}): saves block longer")

    def unpin(self, slot: int) -> None:
        """Before the slot's memory goes."""
        if (address := self._pinned.pop(slot, None)) is not None:
            import torch

            torch.cuda.cudart().cudaHostUnregister(address)

    def start(self, destinations: Sequence[Any], sources: Sequence[Any]) -> None:
        """Queue the copies, after all that the current stream of each device was given before."""
        import torch

        for device in {source.device for source in sources}:
            if device not in self._streams:
                self._streams[device] = torch.cuda.Stream(device)
            self._streams[device].wait_stream(torch.cuda.current_stream(device))
        with torch.no_grad():
            for destination, source in zip(destinations, sources, strict=True):
                with torch.cuda.stream(self._streams[source.device]):
                    for to, of in _chunks(destination, source):
                        to.copy_(of, non_blocking=True)

    def wait(self) -> None:
        """Until all is in host memory. The sources may be changed, and freed, from then on."""
        for stream in self._streams.values():
            stream.synchronize()


def _chunks(destination: Any, source: Any) -> Sequence[tuple[Any, Any]]:
    """The pair in parts of CHUNK bytes; whole if small or not contiguous: torch copies that by way of a buffer."""
    count = CHUNK // source.element_size()
    if source.numel() <= count or not source.is_contiguous():
        return [(destination, source)]
    return list(zip(destination.view(-1).split(count), source.view(-1).split(count), strict=True))
