"""Copy from GPUs into a slot, with pinned memory and a separate stream.

Copies are split into chunks, so that the training's own copies are not delayed for long.

UNTESTED on a GPU: written from torch.cuda's documentation, on a machine without one. The decisions what to copy where
are in staging.py, which is tested on the CPU; this module contains only the CUDA calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import logger

CHUNK = 64 << 20
"""Bytes per copy: the training's own copies from the same device queue behind one chunk, not behind the whole save."""


class DeviceCopies:
    """CUDA streams by device, and pinned slots."""

    def __init__(self) -> None:
        self._streams: dict[Any, Any] = {}
        self._pinned: dict[int, int] = {}
        """Address of each pinned slot, by its number."""
        self._warned = False

    def pin(self, slot: int, address: int, size: int) -> None:
        """Register the slot's memory with CUDA, which makes copies asynchronous DMA transfers. A failure is logged."""
        import torch

        self.unpin(slot)
        error = int(torch.cuda.cudart().cudaHostRegister(address, size, 0))
        if not error:
            self._pinned[slot] = address
        elif not self._warned:  # e.g. RLIMIT_MEMLOCK: slower, but correct
            self._warned = True
            logger().warning(f"checkpoint memory could not be pinned (CUDA error {error}): saves block longer")

    def unpin(self, slot: int) -> None:
        """Unregister the slot's memory; call it before the memory is freed."""
        if (address := self._pinned.pop(slot, None)) is not None:
            import torch

            torch.cuda.cudart().cudaHostUnregister(address)

    def start(self, destinations: Sequence[Any], sources: Sequence[Any]) -> None:
        """Queue the copies behind all work that is queued in the current stream of each device."""
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
        """Block until all copies are in host memory. After that the sources may be changed or freed."""
        for stream in self._streams.values():
            stream.synchronize()


def _chunks(destination: Any, source: Any) -> Sequence[tuple[Any, Any]]:
    """Return pairs of chunks of CHUNK bytes; a small or non-contiguous source is not split.

    For a non-contiguous source, torch copies through a temporary buffer.
    """
    count = CHUNK // source.element_size()
    if source.numel() <= count or not source.is_contiguous():
        return [(destination, source)]
    return list(zip(destination.view(-1).split(count), source.view(-1).split(count), strict=True))
