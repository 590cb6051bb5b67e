"""Exact resume for many kinds of training: scaled, accumulated, frozen, tied, sparse and complex."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from cloudgpu.runtime.checkpoint.format.manifest import RankManifest  # noqa: E402
from cloudgpu.runtime.checkpoint.format.tree import flatten  # noqa: E402
from cloudgpu.tests.standins.checkpoints import restarted  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("CLOUDGPU_"):
            monkeypatch.delenv(name)


class Kind:
    """One kind of training: its objects for the Checkpointer, and its step for a batch."""

    def __init__(self) -> None:
        self.model: nn.Module = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.4), nn.Linear(8, 3))
        self.optimizer: Any = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.more: dict[str, Any] = {}

    def begin(self, number: int) -> None:
        """Prepare a step; called before the forward pass."""

    def update(self, number: int, loss: Any) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


class Accumulated(Kind):
    """Gradient accumulation: one optimizer steps after every third batch, the last layer's after each batch."""

    def __init__(self) -> None:
        super().__init__()
        first, last = self.model[0], self.model[2]
        self.optimizer = torch.optim.AdamW(first.parameters(), lr=0.01)
        self.more["second"] = torch.optim.SGD(last.parameters(), lr=0.01, momentum=0.9, nesterov=True)

    def update(self, number: int, loss: Any) -> None:
        self.more["second"].zero_grad()
        loss.backward()
        self.more["second"].step()
        if number % 3 == 2:
            self.optimizer.step()
            self.optimizer.zero_grad()


class Scaled(Kind):
    """Mixed precision with a GradScaler that grows every second step and sometimes finds an infinite gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
        self.more["scaler"] = self.scaler

    def update(self, number: int, loss: Any) -> None:
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        if number % 5 == 4:
            self.model[0].weight.grad[0, 0] = float("inf")
        self.scaler.step(self.optimizer)
        self.scaler.update()


class Frozen(Kind):
    """Half of the model is frozen at first and unfrozen in the middle: the optimizer has state for some parameters
    only."""

    def __init__(self) -> None:
        super().__init__()
        self.model[0].requires_grad_(False)

    def begin(self, number: int) -> None:
        self.model[0].requires_grad_(
            number >= 10
        )  # derived from the step number, because requires_grad is not part of a state_dict


class Tied(Kind):
    """Two layers that share a weight, and their average."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
        self.model[2].weight = self.model[0].weight
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.more["average"] = torch.optim.swa_utils.AveragedModel(self.model, use_buffers=True)

    def update(self, number: int, loss: Any) -> None:
        super().update(number, loss)
        self.more["average"].update_parameters(self.model)
        assert self.model[2].weight is self.model[0].weight


class Sparse(Kind):
    """An embedding with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.EmbeddingBag(10, 3, sparse=True, mode="sum"))
        self.optimizer = torch.optim.SparseAdam(self.model.parameters(), lr=0.1)


class Complex(Kind):
    """A model with complex weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 3, dtype=torch.complex64))
        self.model = nn.Module()
        self.model.register_parameter("weight", self.weight)
        self.model.forward = lambda x: (x.to(torch.complex64) @ self.weight).abs()
        self.optimizer = torch.optim.AdamW([self.weight], lr=0.01)


KINDS = [Accumulated, Scaled, Frozen, Tied, Sparse, Complex]


def train_kind(kind: type[Kind], folder: Path, stop: int | None = None) -> list[str] | None:
    """Train one kind, as train() does; return the digest of all state, then the losses."""
    torch.manual_seed(1)
    training = kind()
    data = [(torch.randn(4, 6), torch.tensor([0, 1, 2, 0])) for _ in range(20)]
    objects = {"model": training.model, "optimizer": training.optimizer, **training.more}
    ckpt = restarted(**objects, folder=folder, every=1000)
    losses: list[str] = ckpt.state.setdefault("losses", [])
    training.optimizer.zero_grad()  # common in programs before their loop
    for step in ckpt.steps(len(data)):
        if step == stop:
            ckpt.wait()
            return None
        if stop is not None and step + 1 == stop - stop % 2:
            ckpt.save()
        inputs, labels = data[step]
        training.begin(step)
        if kind is Sparse:
            inputs = (inputs.abs() * 3).long() % 10
        loss = nn.functional.cross_entropy(training.model(inputs), labels)
        training.update(step, loss)
        losses.append(loss.item().hex())
    digest = hashlib.sha256()
    _, leaves = flatten({name: value.state_dict() for name, value in objects.items()}, "")
    for key, leaf in leaves.items():
        digest.update(key.encode() + leaf.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return [digest.hexdigest(), *losses]


@pytest.mark.parametrize("kind", KINDS)
def test_resumed_training_of_this_kind_is_bit_identical(kind: type[Kind], tmp_path: Path) -> None:
    undisturbed = train_kind(kind, tmp_path / "a")
    # Saved at 2, 4, 10 and 16: within an accumulation, at its end, after a skipped step, before the unfreezing.
    for stop in (3, 4, 10, 17):
        assert train_kind(kind, tmp_path / f"b{stop}", stop) is None
        assert train_kind(kind, tmp_path / f"b{stop}") == undisturbed, f"broken off after {stop} steps"


def test_gradients_are_saved_only_while_they_are_accumulated(tmp_path: Path) -> None:
    for kind, step, expected in ((Accumulated, 2, True), (Accumulated, 6, False), (Tied, 2, False)):
        folder = tmp_path / f"{kind.__name__}{step}"
        train_kind(kind, folder, step)
        (manifest,) = folder.glob("*/rank-00000.json")
        keys = [piece.key for piece in RankManifest.from_bytes(manifest.read_bytes()).pieces]
        assert any(key.startswith("gradients/") for key in keys) is expected, keys


def test_the_end_of_batches_holds_no_gradients_that_were_used(tmp_path: Path) -> None:
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    ckpt = restarted(model=model, optimizer=optimizer, loader=[torch.ones(2, 6)] * 3, folder=tmp_path, every=1000)
    for batch in ckpt.batches(epochs=2):
        model(batch).sum().backward()
        optimizer.step()
    (manifest,) = tmp_path.glob("*/rank-00000.json")
    keys = [piece.key for piece in RankManifest.from_bytes(manifest.read_bytes()).pieces]
    assert keys == ["random/torch", "objects/model/weight", "objects/model/bias"]


def test_the_end_of_batches_holds_gradients_that_were_not_used(tmp_path: Path) -> None:
    """When more epochs are requested, the accumulation continues."""
    losses: dict[bool, list[float]] = {}
    for interrupted in (False, True):
        losses[interrupted] = []
        folder = tmp_path / str(interrupted)
        for epochs in (1, 2) if interrupted else (2,):
            torch.manual_seed(1)
            model = nn.Linear(6, 3)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            loader = [torch.full((2, 6), float(number)) for number in range(3)]
            ckpt = restarted(model=model, optimizer=optimizer, loader=loader, folder=folder, every=1000)
            for batch in ckpt.batches(epochs=epochs):
                loss = model(batch).square().sum()
                loss.backward()
                losses[interrupted].append(loss.item())
                if ckpt.step % 2:
                    optimizer.step()
                    optimizer.zero_grad()
    assert losses[True] == losses[False]


def test_sharded_parameters_are_warned_of_only_while_they_accumulate(tmp_path: Path) -> None:
    program = """
        import sys, torch
        import torch.distributed as dist
        from torch import nn
        from torch.distributed.fsdp import fully_shard
        from cloudgpu.runtime import Checkpointer
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        for every in (1, 2):
            model = fully_shard(nn.Linear(6, 3))
            optimizer = torch.optim.AdamW(model.parameters())
            ckpt = Checkpointer(
                model=model, optimizer=optimizer, loader=[torch.ones(2, 6)] * 3, folder=f"{sys.argv[1]}/{every}"
            )
            for batch in ckpt.batches(epochs=1):
                model(batch).sum().backward()
                if ckpt.step % every == 0:
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=every > 1)
                if every > 1 and ckpt.step == 1:
                    ckpt.save()
            print("trained", every, file=sys.stderr, flush=True)
        dist.destroy_process_group()
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)]
    errors = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    used, _, accumulated = errors.partition("trained 1")
    assert "gradients" not in used
    assert "gradients accumulated in sharded parameters are not saved" in accumulated
