"""Collective operations among the ranks of one training; with a single rank they return its own values.

A dedicated gloo group keeps them separate from the program's collectives, and from GPU work. All calls are collective:
every rank must make them in the same order.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from .errors import CheckpointError, TransientError
from .rendezvous import find_world, make_group

_T = TypeVar("_T")
_WIDTH = 16
"""Number of values in each all-reduce, padded with zeros: with different lengths, gloo would hang or read past the end
of a buffer."""

_RELEASE_TIMEOUT_S = 1.0
"""Maximum seconds to wait for gloo's thread to release a tensor, which it does shortly after the result is available.
If it does so after the interpreter's shutdown, the process aborts ("terminate called without an active exception",
torch 2.13), and a finished or interrupted training would look like a failure. Seen in 5 of 80 processes on a busy
machine."""


@contextmanager
def translate_lost_rank() -> Iterator[None]:
    """Translate the RuntimeError by which torch reports a lost rank to a TransientError.

    torch's message names only the network transport.
    """
    try:
        yield
    except RuntimeError as error:
        raise TransientError(f"another rank has ended, or cannot be reached: see its own output ({error})") from error


def _reason_and_code(error: Exception) -> tuple[str, int | None]:
    """Return the reason and exit code of an error, for the other ranks."""
    if isinstance(error, CheckpointError):
        return str(error), error.code
    return f"{type(error).__name__}: {error}", None


class Ranks:
    """This process and its peers: all ranks that share one set of checkpoints."""

    def __init__(self) -> None:
        self.rank, self.world = 0, 1
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self._group: Any = None
        torch: Any = sys.modules.get("torch")
        if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
            self.rank, self.world = torch.distributed.get_rank(), torch.distributed.get_world_size()
            if self.world > 1:
                self._group = torch.distributed.new_group(backend="gloo")
        elif (world := find_world()) is not None and world.size > 1:
            self.rank, self.world = world.rank, world.size
            with translate_lost_rank():
                self._group = make_group(world)
        elif int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise CheckpointError(
                f"this is one of {os.environ['WORLD_SIZE']} ranks (WORLD_SIZE), but neither torch.distributed nor "
                "mpi4py nor Horovod is initialised: call torch.distributed.init_process_group(), import mpi4py.MPI or "
                "call hvd.init() before Checkpointer()"
            )

    def maximum(self, values: Sequence[int]) -> list[int]:
        """Return the maximum of each value over all ranks, by one small all-reduce.

        Raises CheckpointError on all ranks if they make different calls: one is in wait(), say, and another at a step's
        end.
        """
        if self._group is None:
            return list(values)
        import torch

        count = len(values)
        sent = [count, -count, *values]
        tensor = torch.tensor(sent + [0] * (_WIDTH - len(sent)), dtype=torch.int64)
        options = torch.distributed.AllreduceOptions()
        options.reduceOp = torch.distributed.ReduceOp.MAX
        holders = sys.getrefcount(tensor)
        with translate_lost_rank():
            self._group.allreduce([tensor], options).wait()
        end = time.monotonic() + _RELEASE_TIMEOUT_S
        while sys.getrefcount(tensor) > holders and time.monotonic() < end:
            time.sleep(0)
        most, least, *result = tensor.tolist()
        if most != -least:
            raise CheckpointError(
                f"the ranks are at different places in the program (this is rank {self.rank}): each must make the same "
                "number of steps, and the same calls of wait() and finish()"
            )
        return list(result[:count])

    @contextmanager
    def raise_on_all(self) -> Iterator[None]:
        """Raise an error of one rank on all ranks: on the others as a CheckpointError that names the rank.

        The body must not call collective methods.
        """
        error: Exception | None = None
        try:
            yield
        except Exception as raised:  # noqa: BLE001 - raised again below, after the exchange with the other ranks
            error = raised
        if self.world > 1 and self.maximum([error is not None])[0]:
            said = self.gather(None if error is None else _reason_and_code(error))
            if error is None:
                rank, (reason, code) = next((rank, one) for rank, one in enumerate(said) if one is not None)
                error = CheckpointError(f"rank {rank}: {reason}")
                error.code = code
        if error is not None:
            raise error

    def gather(self, value: _T) -> list[_T]:
        """Return every rank's value, in rank order."""
        if self._group is None:
            return [value]
        import torch

        data = pickle.dumps(value)
        (size,) = self.maximum([len(data)])
        own = torch.frombuffer(bytearray(data.ljust(size, b"\0")), dtype=torch.uint8)
        parts = [torch.empty_like(own) for _ in range(self.world)]
        with translate_lost_rank():
            self._group.allgather([parts], [own]).wait()
        return [pickle.loads(part.numpy().tobytes()) for part in parts]  # noqa: S301 - from ranks of this program

    def from_first(self, call: Callable[[], _T]) -> _T:
        """Call `call` on rank 0 only, and return its result, or raise its exception, on every rank."""
        answer: tuple[Any, Exception | None] = None, None
        if self.rank == 0:
            try:
                answer = call(), None
            except Exception as error:  # noqa: BLE001 - raised below, on every rank, so that no rank hangs
                answer = None, error
        result, raised = self.gather(answer)[0]
        if raised is not None:
            raise raised
        return result  # type: ignore[no-any-return]
