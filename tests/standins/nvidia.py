"""Stand-in for pynvml (NVML): simulated NVIDIA GPUs on a machine without any."""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping, Sequence

import pytest

from cloudgpu.jobspecs.plan import LocalGpu


class NvmlError(Exception):
    """Stand-in for pynvml.NVMLError."""


class NotSupportedError(NvmlError):
    """Stand-in for pynvml.NVMLError_NotSupported."""


def install_driver(
    gpus: Sequence[LocalGpu],
    monkeypatch: pytest.MonkeyPatch,
    processes: Mapping[str, Sequence[int] | None] | None = None,
) -> None:
    """Replace pynvml by a stand-in in this process.

    `processes`: UUID of a GPU -> ids of its compute processes; None: this GPU's driver does not list them. It is read
    at each call.
    """

    def compute_processes(gpu: LocalGpu) -> list[types.SimpleNamespace]:
        found = (processes or {}).get(gpu.uuid, ())
        if found is None:
            raise NotSupportedError
        return [types.SimpleNamespace(pid=pid) for pid in found]

    driver = types.ModuleType("pynvml")
    driver.NVMLError = NvmlError  # type: ignore[attr-defined]
    driver.NVMLError_NotSupported = NotSupportedError  # type: ignore[attr-defined]
    driver.nvmlDeviceGetComputeRunningProcesses = compute_processes  # type: ignore[attr-defined]
    driver.nvmlInit = driver.nvmlShutdown = lambda: None  # type: ignore[attr-defined]
    driver.nvmlDeviceGetCount = lambda: len(gpus)  # type: ignore[attr-defined]
    driver.nvmlDeviceGetHandleByIndex = lambda index: gpus[index]  # type: ignore[attr-defined]
    driver.nvmlDeviceGetUUID = lambda gpu: gpu.uuid  # type: ignore[attr-defined]
    driver.nvmlDeviceGetName = lambda gpu: gpu.name  # type: ignore[attr-defined]
    driver.nvmlDeviceGetMemoryInfo = lambda gpu: types.SimpleNamespace(total=gpu.memory_gb * 1e9)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", driver)
