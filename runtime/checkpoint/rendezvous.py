"""The world of a program that uses MPI or Horovod, and a process group of the Checkpointer's own for its ranks.

Such programs do not initialise torch.distributed. The group leaves its default group alone: the program may initialise
it later. Rank 0 opens a store at a port that the kernel chooses, and the program's own library broadcasts the address:
no port has to be agreed upon beforehand.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from .errors import CheckpointError

_HOROVOD = ("horovod.torch", "horovod.tensorflow")
"""Modules that a Horovod program has imported one of; horovod.keras imports the latter."""

_TIMEOUT = timedelta(minutes=30)
"""Limits the wait for another rank in a collective; torch's default for gloo."""

_CONNECT_TIMEOUT = timedelta(minutes=1)
"""Limits the wait for rank 0's store, which is open before its address is broadcast."""


class World(NamedTuple):
    """The ranks that MPI or Horovod has started."""

    rank: int
    size: int
    broadcast: Callable[[Any], Any]
    """Return rank 0's argument on every rank; collective."""


def find_world() -> World | None:
    """Return the world of mpi4py or Horovod, whichever the program has initialised; None if it has neither."""
    mpi: Any = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        world = mpi.COMM_WORLD
        return World(world.Get_rank(), world.Get_size(), world.bcast)
    for name in _HOROVOD:
        horovod: Any = sys.modules.get(name)
        if horovod is not None and horovod.is_initialized():
            # By default Horovod's name is the value's type, by which ranks with different types wait for ever.
            broadcast = partial(horovod.broadcast_object, root_rank=0, name="cloudgpu.rendezvous")
            return World(horovod.rank(), horovod.size(), broadcast)
    return None


def make_group(world: World) -> Any:  # torch's ProcessGroupGloo
    """Return a new gloo group of all ranks; collective. Raises CheckpointError without torch, RuntimeError if a rank
    cannot be reached.
    """
    try:
        import torch.distributed as dist
    except ImportError:
        raise CheckpointError(
            f"this is one of {world.size} ranks, which agree on each save through torch: pip install torch"
        ) from None
    from ..launchers.program_context import own_host

    def connect(host: str, port: int) -> Any:  # torch's TCPStore
        first = world.rank == 0
        return dist.TCPStore(host, port, is_master=first, timeout=_CONNECT_TIMEOUT, wait_for_workers=False)

    if world.rank == 0:
        store = connect("localhost", 0)
        world.broadcast((os.environ.get("MASTER_ADDR") or own_host(), store.port))
    else:
        store = connect(*world.broadcast(None))
    return dist.ProcessGroupGloo(store, world.rank, world.size, _TIMEOUT)
