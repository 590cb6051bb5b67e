"""A program's ranks and their number where it does not use torch.distributed."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from cloudgpu.runtime.checkpoint import rendezvous
from cloudgpu.runtime.checkpoint.errors import CheckpointError
from cloudgpu.runtime.checkpoint.ranks import Ranks


def horovod(*, initialised: bool) -> Any:
    """Return a stand-in for Horovod 0.28.1, which hangs if ranks use different names for a broadcast. Its default name
    is the value's type."""

    def broadcast_object(value: Any, root_rank: int = 0, name: str | None = None) -> Any:
        assert name is not None, "rank 0 has an address, the others have None: they would never meet"
        return value, root_rank

    return SimpleNamespace(
        is_initialized=lambda: initialised, rank=lambda: 1, size=lambda: 4, broadcast_object=broadcast_object
    )


@pytest.mark.parametrize("name", ["horovod.torch", "horovod.tensorflow"])
def test_horovod_says_who_the_ranks_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    monkeypatch.setitem(sys.modules, name, horovod(initialised=True))
    world = rendezvous.find_world()
    assert world is not None
    assert (world.rank, world.size, world.broadcast("here")) == (1, 4, ("here", 0))


def test_a_library_that_is_not_initialised_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", SimpleNamespace(Is_initialized=lambda: False))
    monkeypatch.setitem(sys.modules, "horovod.torch", horovod(initialised=False))
    assert rendezvous.find_world() is None


def test_ranks_that_have_not_met_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each rank would take itself for the only one, and overwrite the others' checkpoints."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(CheckpointError, match=r"one of 2 ranks .* call torch.distributed.init_process_group\(\)"):
        Ranks()


def test_several_ranks_need_torch() -> None:
    program = """
import sys
sys.modules["torch"] = None
from cloudgpu.runtime.checkpoint.rendezvous import World, make_group
make_group(World(0, 2, print))
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=180, check=False)
    assert "this is one of 2 ranks, which agree on each save through torch: pip install torch" in done.stderr
