"""Ranks that are threads of one process: the interface of `Ranks`, with a barrier instead of torch.distributed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

_T = TypeVar("_T")


class _Shared:
    def __init__(self, world: int) -> None:
        self.values: list[Any] = [None] * world
        self.barrier = threading.Barrier(world, timeout=180)


class ThreadRanks:
    """One rank; all ranks of a world share one `_Shared`."""

    def __init__(self, rank: int, shared: _Shared) -> None:
        self.rank, self.world = rank, len(shared.values)
        self._shared = shared

    def gather(self, value: _T) -> list[_T]:
        self._shared.values[self.rank] = value
        self._shared.barrier.wait()
        values = list(self._shared.values)
        self._shared.barrier.wait()
        return values

    def from_first(self, call: Callable[[], _T]) -> _T:
        answer: Any = None
        if self.rank == 0:
            try:
                answer = (call(), None)
            except Exception as error:  # noqa: BLE001 - raised below, on every rank
                answer = (None, error)
        result, problem = self.gather(answer)[0]
        if problem is not None:
            raise problem
        return result  # type: ignore[no-any-return]


def on_ranks(world: int, call: Callable[[Any], _T]) -> list[_T]:
    """Return the results of `call` on each rank; raise the first error."""
    shared = _Shared(world)

    def one(rank: int) -> _T:
        try:
            return call(ThreadRanks(rank, shared))
        except BaseException:
            shared.barrier.abort()  # unblocks the waiting ranks
            raise

    with ThreadPoolExecutor(world) as pool:
        futures = [pool.submit(one, rank) for rank in range(world)]
        errors = [error for future in futures if (error := future.exception())]
        real = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
        if errors:
            raise (real or errors)[0]
        return [future.result() for future in futures]
