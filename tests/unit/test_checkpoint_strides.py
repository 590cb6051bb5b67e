"""Restored tensors keep their strides: a resumed optimizer gives the same bits by the same fast path, for any
layout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from cloudgpu.runtime.checkpoint.format.manifest import RankManifest  # noqa: E402
from cloudgpu.runtime.checkpoint.format.strides import StateAlignment, align  # noqa: E402
from cloudgpu.tests.standins.checkpoints import local_store, restarted, restore_all, save  # noqa: E402

torch.set_num_threads(1)
OLD = Path(__file__).parents[1] / "standins" / "old_checkpoint"
"""A checkpoint of a version that saved no strides: two convolutions in channels_last, AdamW, accumulated gradients."""


@pytest.fixture(autouse=True)
def _no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("CLOUDGPU_"):
            monkeypatch.delenv(name)


# Layouts of parameters × optimizers × dtypes


def laid(*shape: int, strides: tuple[int, ...], offset: int = 0) -> Any:
    """Return zeros with these strides, starting `offset` elements into their memory."""
    memory = sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True)) + 1
    return torch.zeros(offset + memory).as_strided(shape, strides, offset)


LAYOUTS: dict[str, Callable[[], Any]] = {
    "row-major": lambda: torch.zeros(3, 2, 2, 2),
    "channels_last": lambda: torch.zeros(3, 2, 2, 2).to(memory_format=torch.channels_last),
    "channels_last_3d": lambda: torch.zeros(3, 2, 2, 2, 2).to(memory_format=torch.channels_last_3d),
    "1x1 channels_last": lambda: laid(3, 4, 1, 1, strides=(4, 1, 4, 4)),
    "transposed": lambda: torch.zeros(4, 3).T,
    "permuted": lambda: torch.zeros(2, 3, 4).permute(1, 2, 0),
    "a column": lambda: laid(3, 1, strides=(1, 3)),
    "with an offset": lambda: laid(3, 4, strides=(1, 3), offset=5),
    "a vector": lambda: torch.zeros(5),
    "a number": lambda: torch.zeros(()),
}
GAPS: dict[str, Callable[[], Any]] = {
    "columns": lambda: laid(3, 2, strides=(5, 1), offset=1),
    "every second": lambda: laid(4, strides=(2,)),
}
"""Layouts with gaps. Fused kernels are excluded: they ignore strides, and torch itself trains these wrongly."""

Make = Callable[[list[Any]], Any]
OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.01, momentum=0.9),
    "SGD nesterov": lambda p: torch.optim.SGD(p, 0.01, momentum=0.9, nesterov=True, foreach=True),
    "SGD fused": lambda p: torch.optim.SGD(p, 0.01, momentum=0.9, fused=True),
    "Adam": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True, foreach=False),
    "Adam foreach": lambda p: torch.optim.Adam(p, 0.01, foreach=True),
    "Adam fused": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True, fused=True),
    "AdamW": lambda p: torch.optim.AdamW(p, 0.01),
    "AdamW fused": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
    "NAdam": lambda p: torch.optim.NAdam(p, 0.01),
    "RAdam": lambda p: torch.optim.RAdam(p, 0.01),
    "Adamax": lambda p: torch.optim.Adamax(p, 0.01),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.01),
    "Adagrad fused": lambda p: torch.optim.Adagrad(p, 0.01, fused=True),
    "Adadelta": lambda p: torch.optim.Adadelta(p, 0.5),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.9, centered=True),
    "Rprop": lambda p: torch.optim.Rprop(p, 0.01),
    "ASGD": lambda p: torch.optim.ASGD(p, 0.01),
    "Adafactor": lambda p: torch.optim.Adafactor(p, 0.01),
    "LBFGS": lambda p: torch.optim.LBFGS(p, 0.1, max_iter=2, history_size=3),
}

FUSED = [name for name in OPTIMIZERS if "fused" in name]


class Fit:
    """Parameters of all layouts and an optimizer, trained step by step."""

    def __init__(self, make: Make, dtype: Any, layouts: dict[str, Callable[[], Any]]) -> None:
        self.model = nn.ParameterDict()
        for name, layout in layouts.items():
            self.model[name] = nn.Parameter(_as(layout(), dtype))
        self.parameters = list(self.model.values())
        self.optimizer = make(self.parameters)
        with torch.no_grad():
            for number, parameter in enumerate(self.parameters):
                parameter.copy_(_values(parameter, number))

    def step(self, number: int) -> None:
        def closure() -> Any:
            self.optimizer.zero_grad()
            loss = sum(
                (parameter * _values(parameter, number + place)).square().sum()
                for place, parameter in enumerate(self.parameters)
            )
            loss.backward()
            return loss

        self.optimizer.step(closure)

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def tensors(self) -> list[tuple[str, tuple[int, ...], list[float]]]:
        """Return the names, strides and values of the optimizer's tensors and the parameters."""
        found = [("parameter", parameter) for parameter in self.parameters]
        for state in self.optimizer.state.values():
            found += [(key, value) for key, value in state.items() if isinstance(value, torch.Tensor)]
        return [(name, tensor.stride(), tensor.detach().double().flatten().tolist()) for name, tensor in found]


def _as(zeros: Any, dtype: Any) -> Any:
    """Return zeros with the same strides in another dtype, gaps included."""
    memory = zeros.untyped_storage().nbytes() // zeros.element_size()
    return torch.zeros(memory, dtype=dtype).as_strided(zeros.shape, zeros.stride(), zeros.storage_offset())


def _values(like: Any, seed: int) -> Any:
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(seed)).to(like.dtype)


def row_major(state: Any) -> Any:
    """Return the state in row-major order, as versions that saved no strides restored it."""
    if isinstance(state, torch.Tensor):
        return state.contiguous()
    if isinstance(state, dict):
        return {key: row_major(value) for key, value in state.items()}
    return [row_major(value) for value in state] if isinstance(state, list) else state


CASES = [(name, "float32", True) for name in OPTIMIZERS]
CASES += [(name, dtype, True) for name in ("SGD", "AdamW", *FUSED) for dtype in ("bfloat16", "float64")]
CASES.remove(("SGD fused", "bfloat16", True))  # two identical runs differ in torch 2.13
CASES += [(name, "float32", False) for name in ("SGD", "Adam", "AdamW", *FUSED)]


@pytest.mark.parametrize(("name", "dtype", "kept"), CASES)
def test_resumed_optimizers_give_the_same_bits(name: str, dtype: str, kept: bool, tmp_path: Path) -> None:
    layouts = LAYOUTS if name in FUSED else LAYOUTS | GAPS
    if name == "LBFGS":  # refuses gradients that are not row-major
        layouts = {name: LAYOUTS[name] for name in ("row-major", "a vector", "a number")}
    undisturbed = Fit(OPTIMIZERS[name], getattr(torch, dtype), layouts)
    for number in range(3):
        undisturbed.step(number)
    store = local_store(tmp_path)
    state = undisturbed.state()
    save(store, 3, [{"step": 3, "objects": state if kept else row_major(state)}])
    resumed = Fit(OPTIMIZERS[name], getattr(torch, dtype), layouts)
    (found,) = restore_all(store, 1)
    assert found is not None
    resumed.model.load_state_dict(found.snapshot["objects"]["model"])
    resumed.optimizer.load_state_dict(found.snapshot["objects"]["optimizer"])
    assert not kept or resumed.tensors() == undisturbed.tensors(), "before the first step"
    alignment = StateAlignment()
    alignment.restored = True
    alignment.attach()
    try:
        for number in range(3, 6):
            undisturbed.step(number)
            resumed.step(number)
    finally:
        alignment.detach()
    for one, other in zip(undisturbed.tensors(), resumed.tensors(), strict=True):
        assert one[::2] == other[::2], one[0]
        # torch chose the layout of the state of a parameter with gaps; it is lost without saved strides.
        assert one[1] == other[1] or not (kept or name in FUSED), one[0]


def test_a_memory_format_that_is_set_after_the_restore(tmp_path: Path) -> None:
    """The program may also not have set it when it saved: the parameter's layout at the first step decides."""
    saved = Fit(OPTIMIZERS["AdamW fused"], torch.float32, {"w": LAYOUTS["row-major"]})
    saved.step(0)
    store = local_store(tmp_path)
    save(store, 1, [{"step": 1, "objects": saved.state()}])
    resumed = Fit(OPTIMIZERS["AdamW fused"], torch.float32, {"w": LAYOUTS["row-major"]})
    (found,) = restore_all(store, 1)
    assert found is not None
    resumed.model.load_state_dict(found.snapshot["objects"]["model"])
    resumed.optimizer.load_state_dict(found.snapshot["objects"]["optimizer"])
    resumed.model.to(memory_format=torch.channels_last)
    alignment = StateAlignment()
    alignment.restored = True
    alignment.attach()
    saved.step(1)
    resumed.step(1)
    alignment.detach()
    assert [one[::2] for one in saved.tensors()] == [one[::2] for one in resumed.tensors()]


def test_only_a_tensor_of_the_parameters_shape_is_aligned() -> None:
    parameter = torch.zeros(3, 2, 2, 2).to(memory_format=torch.channels_last)
    for other in (torch.zeros(()), torch.zeros(3, 2, 2), torch.zeros(3, 2, 2, 2).to_sparse(), parameter):
        assert align(other, parameter) is other
    half = torch.arange(24.0).reshape(3, 2, 2, 2).bfloat16()
    aligned = align(half, parameter)
    assert (aligned.dtype, aligned.stride()) == (torch.bfloat16, parameter.stride())
    assert torch.equal(aligned, half)
    expanded = torch.zeros(3, 1, 1, 1).expand(3, 2, 2, 2)
    assert align(half, expanded) is half


# Through a Checkpointer


def convolutions() -> tuple[Any, Any]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(2, 3, 2), nn.ReLU(), nn.Conv2d(3, 2, 1)).to(memory_format=torch.channels_last)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)


def train(folder: Path, *, stop: int | None = None, overlap: bool = False) -> list[Any] | None:
    """Train with two accumulation steps per optimizer step; interrupt at `stop`, after a save."""
    model, optimizer = convolutions()
    ckpt = restarted(model=model, optimizer=optimizer, folder=folder, every=1000, overlap=overlap)
    for step in ckpt.steps(9):
        if step == stop:
            ckpt.wait()
            return None
        if step + 1 == stop:
            ckpt.save()
        accumulate(model, step)
        if step % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
    moments = [optimizer.state[parameter]["exp_avg"] for parameter in model.parameters()]
    return [(tensor.stride(), tensor.tolist()) for tensor in (*model.parameters(), *moments)]


def accumulate(model: Any, step: int) -> None:
    batch = torch.randn(2, 2, 5, 5, generator=torch.Generator().manual_seed(step))
    model(batch).square().mean().backward()


@pytest.mark.parametrize("overlap", [False, True])
def test_channels_last_with_a_fused_optimizer(overlap: bool, tmp_path: Path) -> None:
    undisturbed = train(tmp_path / "a", overlap=overlap)
    for stop in (4, 5, 6):  # with and without accumulated gradients
        assert train(tmp_path / f"b{stop}", stop=stop, overlap=overlap) is None
        assert train(tmp_path / f"b{stop}", overlap=overlap) == undisturbed, f"broken off at {stop}"


def test_a_checkpoint_that_keeps_no_strides(tmp_path: Path) -> None:
    """Resume a checkpoint of the previous version as torch would if its tensors had the parameters' layout."""
    shutil.copytree(OLD, tmp_path / "checkpoints")
    model, optimizer = convolutions()
    ckpt = restarted(model=model, optimizer=optimizer, folder=tmp_path / "checkpoints", every=1000)
    assert ckpt.step == 5
    expected, reference = by_hand(tmp_path / "checkpoints")
    for step in ckpt.steps(9):
        for one, its in ((model, optimizer), (expected, reference)):
            accumulate(one, step)
            if step % 3 == 2:
                its.step()
                its.zero_grad()
    for one, other in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(one, other)
        assert optimizer.state[one]["exp_avg"].stride() == one.stride()


def by_hand(folder: Path) -> tuple[Any, Any]:
    """Read the checkpoint without the package's reader."""
    (manifest,) = folder.glob("*/rank-00000.json")
    data = bytearray(manifest.with_suffix(".bin").read_bytes())
    pieces = RankManifest.from_bytes(manifest.read_bytes()).pieces
    raw = {piece.key: data[piece.at : piece.at + piece.size] for piece in pieces}
    kept = {piece.key: torch.frombuffer(raw[piece.key], dtype=getattr(torch, piece.dtype)) for piece in pieces}
    kept = {piece.key: kept[piece.key].view(piece.shape) for piece in pieces}
    model, optimizer = convolutions()
    with torch.no_grad():
        for number, (name, parameter) in enumerate(model.named_parameters()):
            parameter.copy_(kept[f"objects/model/{name}"])
            parameter.grad = torch.empty_like(parameter).copy_(kept[f"gradients/optimizer {number}"])
            prefix = f"objects/optimizer/state/{number}"
            moments = {
                name: torch.empty_like(parameter).copy_(kept[f"{prefix}/{name}"]) for name in ("exp_avg", "exp_avg_sq")
            }
            optimizer.state[parameter] = {"step": kept[f"{prefix}/step"].clone(), **moments}
    return model, optimizer


def test_parts_of_dtensors_lie_as_those_of_the_live_parameter(tmp_path: Path) -> None:
    """Save a transposed DTensor and a transposed plain tensor; fused AdamW accepts both as restored."""
    program = """
        import pathlib, sys, torch
        import torch.distributed as dist
        from torch import nn
        from torch.distributed.tensor import DTensor, Shard, init_device_mesh
        from cloudgpu.tests.standins.checkpoints import local_store, restore_all, save
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        mesh, store = init_device_mesh("cpu", (1,)), local_store(pathlib.Path(sys.argv[1]))
        plain = torch.arange(6.0).reshape(3, 2).T
        weight = nn.Parameter(DTensor.from_local(plain, mesh, [Shard(0)]))
        weight.grad = DTensor.from_local(torch.ones(3, 2).T, mesh, [Shard(0)])
        model, optimizer = nn.ParameterDict({"w": weight}), torch.optim.AdamW([weight], fused=True)
        objects = {"model": model, "optimizer": optimizer}
        optimizer.step()
        for number in range(2):
            state = {"model": {"w": plain} if number else model.state_dict(), "optimizer": optimizer.state_dict()}
            save(store, number, [{"step": number, "objects": state}])
            (found,) = restore_all(store, 1, objects)
            again = found.snapshot["objects"]
            moment, kept = again["optimizer"]["state"][0]["exp_avg"], optimizer.state[weight]["exp_avg"]
            assert moment.to_local().stride() == again["model"]["w"].to_local().stride() == plain.stride() == (1, 2)
            assert torch.equal(moment.to_local(), kept.to_local())
            assert torch.equal(again["model"]["w"].to_local(), state["model"]["w"] if number else weight.to_local())
        dist.destroy_process_group()
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
