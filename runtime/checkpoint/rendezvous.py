"""Process group for the ranks of a program that uses MPI or Horovod, which do not initialise torch.distributed.

The group is not torch's default group, which the program may initialise later. Rank 0 opens a store at a port chosen by
the kernel, and MPI or Horovod broadcasts its address, so no port needs to be configured.
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
"""Modules of Horovod: a program imports one of them (horovod.keras imports horovod.tensorflow)."""

_TIMEOUT = timedelta(minutes=30)
"""Timeout of a collective; torch's default for gloo."""

_CONNECT_TIMEOUT = timedelta(minutes=1)
"""Timeout for the connection to rank 0's store, which is open before its address is broadcast."""


class World(NamedTuple):
    """The ranks started by MPI or Horovod."""

    rank: int
    size: int
    broadcast: Callable[[Any], Any]
    """Collective function that returns rank 0's argument on every rank."""


def find_world() -> World | None:
    """Return the ranks of mpi4py or Horovod, whichever the program has initialised; None if neither."""
    mpi: Any = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        world = mpi.COMM_WORLD
        return World(world.Get_rank(), world.Get_size(), world.bcast)
    for name in _HOROVOD:
        horovod: Any = sys.modules.get(name)
        if horovod is not None and horovod.is_initialized():
            # Horovod names the operation after the value's type by default; ranks with other types would hang.
            broadcast = partial(horovod.broadcast_object, root_rank=0, name="cloudgpu.rendezvous")
            return World(horovod.rank(), horovod.size(), broadcast)
    return None


def make_group(world: World) -> Any:  # torch's ProcessGroupGloo
    """Return a new gloo group of all ranks; collective.

    Raises CheckpointError if torch is not installed, RuntimeError if a rank cannot be reached.
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
