"""GPUs of this machine: discovered through NVML, allocated by file locks that the kernel frees.

A GPU is free if its lock, which all users of the machine share (local/locks.py), is not held, and the driver lists no
compute process on it (programs not started by cloudgpu hold no lock).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from ...jobspecs.home import private
from ...jobspecs.plan import LocalGpu
from ..base import NodeRequest, ProvisionError
from .locks import lock_gpu

_T = TypeVar("_T")

VISIBLE = "CUDA_VISIBLE_DEVICES"
_NVML = "libnvidia-ml.so.1"
"""Library of the GPU driver; WSL and containers have it, but not /proc/driver/nvidia."""


def find_gpus() -> tuple[LocalGpu, ...]:
    """Return the GPUs in PCI order, except those hidden by CUDA_VISIBLE_DEVICES; () without a driver. Raises
    ProvisionError."""
    return visible(_ask_driver(_gpu), os.environ.get(VISIBLE))


def find_processes() -> dict[str, tuple[int, ...]]:
    """Return the ids of the processes that compute on each GPU, by its UUID. Raises ProvisionError."""
    return dict(_ask_driver(_processes))


def _ask_driver(question: Callable[[object], _T]) -> list[_T]:
    """Call `question` with the NVML handle of each GPU, in PCI order; [] without a driver. Raises ProvisionError."""
    if "pynvml" not in sys.modules and not _has_driver():  # the import takes ten times as long as this check
        return []
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        return [question(pynvml.nvmlDeviceGetHandleByIndex(index)) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError as error:
        raise ProvisionError("transient", f"the GPU driver does not answer: {error}", code="nvml") from error
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _has_driver() -> bool:
    """Return whether pynvml would find the driver's library."""
    import ctypes

    try:
        ctypes.CDLL(_NVML)
    except OSError:
        return False
    return True


def visible(gpus: Sequence[LocalGpu], setting: str | None) -> tuple[LocalGpu, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES selects, parsed as CUDA does: indices or UUID prefixes, up to the first
    invalid one."""
    if setting is None:
        return tuple(gpus)
    chosen: list[LocalGpu] = []
    for word in setting.split(","):
        name = word.strip()
        matches = [gpu for gpu in gpus if name and gpu.uuid.startswith(name)]
        if name.isdecimal() and int(name) < len(gpus):
            matches = [gpus[int(name)]]
        if len(matches) != 1:
            break
        chosen.append(matches[0])
    return tuple(dict.fromkeys(chosen))


def _gpu(handle: object) -> LocalGpu:
    import pynvml

    return LocalGpu(
        uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
        name=str(pynvml.nvmlDeviceGetName(handle)),
        memory_gb=round(pynvml.nvmlDeviceGetMemoryInfo(handle).total / 1e9, 1),
    )


def _processes(handle: object) -> tuple[str, tuple[int, ...]]:
    """Return a GPU's UUID and the ids of its compute processes; () if the driver does not list them (WSL)."""
    import pynvml

    try:
        found = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except pynvml.NVMLError_NotSupported:
        found = []
    return str(pynvml.nvmlDeviceGetUUID(handle)), tuple(process.pid for process in found)


class Hold:
    """GPUs held for one node by open, locked files; processes that inherit the descriptors hold the GPUs, too."""

    def __init__(self) -> None:
        self.uuids: list[str] = []
        self.descriptors: list[int] = []

    def release(self) -> None:
        """Close this process's descriptors; inherited copies stay open."""
        while self.descriptors:
            os.close(self.descriptors.pop())


@contextlib.contextmanager
def hold(nodes: Sequence[NodeRequest], everyone: Sequence[NodeRequest], folder: Path) -> Iterator[dict[str, Hold]]:
    """Context manager: hold GPUs for `nodes`, all or none. Raises ProvisionError.

    `everyone`: all nodes of the launch. The error is `invalid` if the machine has too few GPUs for them, `capacity` if
    other jobs use the GPUs now.
    """
    holds = {node.node: Hold() for node in nodes}
    try:
        if any(node.accelerator for node in everyone):
            _check(everyone, find_gpus())
            _take(nodes, find_gpus(), folder, holds)
        yield holds
    finally:
        for held in holds.values():
            held.release()


def _check(nodes: Sequence[NodeRequest], gpus: Sequence[LocalGpu]) -> None:
    there = _names(gpus)
    for node in nodes:
        if node.accelerator and node.count.denominator != 1:
            raise ProvisionError("invalid", f"{node.node}: this machine hands out whole GPUs, not {node.count}")
    for name, count in _sums(nodes).items():
        if count > there.count(name):
            have = ", ".join(f"{name}:{there.count(name)}" for name in sorted(set(there))) or "no GPU"
            raise ProvisionError("invalid", f"the job needs {name}:{count}, this machine has {have}", scope="cloud")


def shortage(nodes: Sequence[NodeRequest], ahead: Mapping[str, int]) -> str:
    """Return why the nodes cannot have their GPUs now; "": they can, or the machine has too few (hold() then raises).

    `ahead`: accelerator -> number of GPUs that are kept for other jobs. Raises ProvisionError, OSError."""
    wanted = _sums(nodes)
    if not wanted:
        return ""
    gpus = find_gpus()
    names = _names(gpus)
    users = find_processes()
    for name, count in wanted.items():
        mine = [gpu.uuid for gpu, of in zip(gpus, names, strict=True) if of == name]
        if count > len(mine):
            return ""
        free = sum(_is_free(uuid) for uuid in mine if not users.get(uuid))
        kept = ahead.get(name, 0)
        if kept and free - kept < count:
            return f"needs {name}:{count} of this machine; jobs ahead of it in the queue wait for {name} as well"
        if free < count:
            used = [f"{uuid} is used by process {_pids(users[uuid])}" for uuid in mine if users.get(uuid)]
            return "; ".join([f"needs {name}:{count} of this machine, {free} of {len(mine)} are free", *used])
    return ""


def _is_free(uuid: str) -> bool:
    descriptor = lock_gpu(uuid)
    if descriptor is None:
        return False
    os.close(descriptor)
    return True


def _pids(processes: Sequence[int]) -> str:
    return ", ".join(map(str, processes))


def _sums(nodes: Sequence[NodeRequest]) -> dict[str, int]:
    """Return accelerator -> number of GPUs of all nodes. Fractions, which hold() refuses, are rounded down."""
    wanted: dict[str, int] = {}
    for node in nodes:
        if node.accelerator:
            wanted[node.accelerator] = wanted.get(node.accelerator, 0) + int(node.count)
    return wanted


def _take(nodes: Sequence[NodeRequest], gpus: Sequence[LocalGpu], folder: Path, holds: dict[str, Hold]) -> None:
    private(folder)
    names = _names(gpus)
    # Serialize the launches of this state directory: two that lock GPUs one by one could each get half of what they
    # need. Launches of other users are not excluded; both would then fail, and are retried.
    with (folder / "lock").open("wb") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        users = find_processes()
        for node in nodes:
            held = holds[node.node]
            for gpu, name in zip(gpus, names, strict=True):
                if len(held.uuids) == int(node.count) or name != node.accelerator or users.get(gpu.uuid):
                    continue
                descriptor = lock_gpu(gpu.uuid)
                if descriptor is not None:
                    held.uuids.append(gpu.uuid)
                    held.descriptors.append(descriptor)
            if node.accelerator and len(held.uuids) < int(node.count):
                raise ProvisionError("capacity", _shortage(node, len(held.uuids), gpus, names, users))


def _shortage(
    node: NodeRequest,
    free: int,
    gpus: Sequence[LocalGpu],
    names: Sequence[str],
    users: Mapping[str, Sequence[int]],
) -> str:
    """Return why a node gets no GPUs now, with the ids of processes not started by cloudgpu, which the user may have
    forgotten."""
    message = f"{node.node} needs {node.accelerator}:{node.count}, {free} are free on this machine"
    busy = {
        gpu.uuid: users[gpu.uuid]
        for gpu, name in zip(gpus, names, strict=True)
        if name == node.accelerator and users.get(gpu.uuid)
    }
    used = [f"{uuid} is used by process {_pids(pids)}" for uuid, pids in busy.items()]
    return "; ".join([message, *used])


def _names(gpus: Sequence[LocalGpu]) -> list[str]:
    """Return the canonical name of each GPU."""
    from ...jobspecs.planner.local import accelerator_of

    return [accelerator_of(gpu) for gpu in gpus]
