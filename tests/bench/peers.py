"""Saving of a training's state with cloudgpu and its alternatives, one class per way.

`save` returns when training may continue; `wait` when the save is as durable as the library makes it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from .training import Copy, Training, tensors


class Way:
    """One way to save, constructed once per training and used for each checkpoint."""

    def __init__(self, training: Training, folder: Path) -> None:
        self.training, self.folder = training, folder
        self.saves = 0

    def new_path(self) -> Path:
        self.saves += 1
        return self.folder / f"{self.saves:04d}"

    def save(self) -> None:
        raise NotImplementedError

    def wait(self) -> None:
        """Wait until the last save is durable; a no-op for synchronous ways."""

    def close(self) -> None:
        self.wait()


class Neighbour(Way):
    """Lower limit of a save's cost: no save, but another process writes and flushes the same amount of other data."""

    _PROGRAM = """
import os, sys
content = bytearray(os.urandom(1 << 20) * (int(sys.argv[1]) >> 20))
print(flush=True)
for path in sys.stdin:
    with open(path.strip(), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    print(flush=True)
"""

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        command = [sys.executable, "-c", self._PROGRAM, str(Copy(training.state()).nbytes)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._writing = True
        self.wait()

    def save(self) -> None:
        assert self._process.stdin is not None
        print(self.new_path(), file=self._process.stdin, flush=True)
        self._writing = True

    def wait(self) -> None:
        assert self._process.stdout is not None
        if self._writing:
            self._process.stdout.readline()
            self._writing = False
            self.folder.joinpath(f"{self.saves:04d}").unlink(missing_ok=True)

    def close(self) -> None:
        self.wait()
        self._process.communicate()


class CopyingNeighbour(Neighbour):
    """Lower limit of an overlapped save's cost: in addition, a thread copies the state in one call."""

    _thread: threading.Thread | None = None

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        self._sources = list(tensors(training.state()))
        self._targets = [one.detach().clone() for one in self._sources]

    def save(self) -> None:
        self._thread = threading.Thread(target=self._copy)
        self._thread.start()
        super().save()

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
        super().wait()

    def _copy(self) -> None:
        import torch

        with torch.no_grad():
            torch._foreach_copy_(self._targets, self._sources)


class TorchSave(Way):
    def save(self) -> None:
        import torch

        torch.save(self.training.state(), self.new_path())


class TorchSaveSynced(Way):
    """torch.save to a temporary file, which is flushed and then renamed."""

    def save(self) -> None:
        import torch

        path = self.new_path()
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            torch.save(self.training.state(), file)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
        _sync(self.folder)


class Safetensors(Way):
    def save(self) -> None:
        from safetensors.torch import save_file

        state = self.training.state()
        flat = dict(state["model"])
        for index, moments in state["optimizer"]["state"].items():
            flat |= {f"optimizer.{index}.{name}": value for name, value in moments.items()}
        path = self.new_path()
        partial = path.with_suffix(".partial")
        save_file(flat, partial)
        _sync(partial)
        partial.rename(path)
        _sync(self.folder)


class Dcp(Way):
    def save(self) -> None:
        import torch.distributed.checkpoint as dcp

        dcp.save(self.training.state(), checkpoint_id=self.new_path(), no_dist=True)


class _DcpAsync(Way):
    """`process`: written by a separate process, otherwise by a thread. `reused`: one stager for all saves."""

    process, reused = False, False

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        self._pending: Any = None
        self._stager: Any = None
        if self.reused:
            self._stager = DefaultStager(StagingOptions(False, self.process, False, False))
        if self.process:
            import torch.distributed as dist

            dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)

    def save(self) -> None:
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType as Kind

        self.wait()  # the library requires one save at a time
        self._pending = dcp.async_save(
            self.training.state(),
            checkpoint_id=self.new_path(),
            async_checkpointer_type=Kind.PROCESS if self.process else Kind.THREAD,
            async_stager=self._stager,
        )

    def wait(self) -> None:
        if self._pending is not None:
            self._pending.result()
            self._pending = None

    def close(self) -> None:
        super().close()
        if self._stager is not None:
            self._stager.close()


class DcpThread(_DcpAsync):
    pass


class DcpThreadReused(_DcpAsync):
    reused = True


class DcpProcess(_DcpAsync):
    process = True


class DcpProcessReused(_DcpAsync):
    process = reused = True


class Lightning(Way):
    """Trainer.save_checkpoint, which Lightning's ModelCheckpoint calls."""

    asynchronous = False

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        import logging
        import warnings

        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        warnings.filterwarnings("ignore")
        from lightning.pytorch import LightningModule, Trainer
        from lightning.pytorch.plugins import AsyncCheckpointIO, TorchCheckpointIO

        module = LightningModule()
        module.model = training.model
        io = TorchCheckpointIO()
        self._io: Any = AsyncCheckpointIO(io) if self.asynchronous else io
        self._trainer = Trainer(
            accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, plugins=[self._io]
        )
        self._trainer.strategy.connect(module)
        self._trainer.strategy.optimizers = [training.optimizer]
        if self.asynchronous:
            self._io.setup(self._trainer) if hasattr(self._io, "setup") else None

    def save(self) -> None:
        self._trainer.save_checkpoint(self.new_path())


class LightningAsync(Lightning):
    asynchronous = True

    def wait(self) -> None:
        executor = getattr(self._io, "_executor", None)
        if executor is not None:
            executor.submit(lambda: None).result()  # with one worker, earlier saves finish first


class Accelerate(Way):
    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        from accelerate import Accelerator

        self._accelerator = Accelerator(cpu=True)
        training.model, training.optimizer = self._accelerator.prepare(training.model, training.optimizer)

    def save(self) -> None:
        self._accelerator.save_state(str(self.new_path()))


class Ours(Way):
    """The Checkpointer's public methods; its writer hashes, flushes and commits."""

    overlap: bool | str = "auto"

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        from cloudgpu.runtime import Checkpointer

        self._ckpt = Checkpointer(
            model=training.model,
            optimizer=training.optimizer,
            folder=folder,
            every=1_000_000,
            keep=3,
            overlap=self.overlap,
        )
        self._ckpt.begin()

    def save(self) -> None:
        self._ckpt.save()
        self._ckpt.end_step()

    def wait(self) -> None:
        self._ckpt.wait()

    def close(self) -> None:
        self._ckpt.end(finished=False)


class OursBlocking(Ours):
    overlap = False


class OursOverlapped(Ours):
    overlap = True


WAYS: dict[str, tuple[type[Way], str]] = {
    "torch.save": (TorchSave, "not flushed"),
    "torch.save, flushed, renamed": (TorchSaveSynced, "flushed"),
    "safetensors, flushed, renamed": (Safetensors, "flushed"),
    "DCP save": (Dcp, "flushed"),
    "DCP async_save, thread": (DcpThread, "flushed"),
    "DCP async_save, thread, reused stager": (DcpThreadReused, "flushed"),
    "DCP async_save, process": (DcpProcess, "flushed"),
    "DCP async_save, process, reused stager": (DcpProcessReused, "flushed"),
    "Lightning save_checkpoint": (Lightning, "not flushed"),
    "Lightning AsyncCheckpointIO": (LightningAsync, "not flushed"),
    "Accelerate save_state": (Accelerate, "not flushed"),
    "no save, a process that writes": (Neighbour, "flushed: the limit"),
    "the same, and a thread that copies": (CopyingNeighbour, "flushed: the limit of an overlapped save"),
    "cloudgpu": (Ours, "hashed, flushed, committed"),
    "cloudgpu, blocking": (OursBlocking, "hashed, flushed, committed"),
    "cloudgpu, overlapped": (OursOverlapped, "hashed, flushed, committed"),
}


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
