"""Cached structure between saves: any change between two saves is detected."""

from __future__ import annotations

import mmap
import random
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from torch import nn  # noqa: E402

from cloudgpu.runtime import CheckpointError  # noqa: E402
from cloudgpu.runtime.checkpoint.format.tree import flatten  # noqa: E402
from cloudgpu.runtime.checkpoint.restore.rebuild import rebuild  # noqa: E402
from cloudgpu.runtime.checkpoint.save.staging import Stager  # noqa: E402
from cloudgpu.tests.standins.checkpoints import restarted  # noqa: E402


class Saves:
    """A sequence of saves of given states."""

    def __init__(self) -> None:
        self._stager = Stager()
        self._memory = memoryview(mmap.mmap(-1, 1 << 20))

    def save(self, state: Any) -> Any:
        """Save; return the state that a restore would give."""
        tree, leaves = flatten(state, "")
        layout, sources = self._stager.lay_out(leaves)
        self._stager.copy(layout, sources, 0, self._memory)
        staged = {}
        for piece in layout.pieces:
            leaf = leaves[piece.key]
            raw = bytes(self._memory[piece.at : piece.at + piece.size])
            assert raw == bytes_of(leaf), piece.key
            assert (piece.shape, piece.dtype) == (tuple(leaf.shape), str(leaf.dtype).removeprefix("torch."))
            staged[piece.key] = leaf
        return rebuild(tree, staged.__getitem__)


def bytes_of(leaf: Any) -> bytes:
    """Return the leaf's bytes in memory order."""
    if isinstance(leaf, np.ndarray):
        return bytes(leaf.tobytes())
    leaf = leaf.detach().resolve_conj()
    leaf = leaf if leaf.is_contiguous() else leaf.T
    return bytes(leaf.contiguous().reshape(-1).view(torch.uint8).tolist())


def training() -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters()), "list": [], "table": {}}


def step(training: dict[str, Any]) -> None:
    training["model"](torch.randn(3, 4, dtype=training["model"][0].weight.dtype)).sum().backward()
    training["optimizer"].step()


def state_of(training: dict[str, Any]) -> dict[str, Any]:
    return {name: value.state_dict() if hasattr(value, "state_dict") else value for name, value in training.items()}


def set_parameter(training: dict[str, Any], parameter: Any) -> None:
    training["model"][0].weight = parameter


def point_elsewhere(training: dict[str, Any]) -> None:
    training["model"][0].weight.data = torch.randn(4, 4)


def resize(training: dict[str, Any]) -> None:
    training["model"][1].running_mean.resize_(9).fill_(3)


def tie(training: dict[str, Any]) -> None:
    training["model"][2].weight = training["model"][0].weight


def share_as_transposed(training: dict[str, Any]) -> None:
    training["model"][2].weight = nn.Parameter(training["model"][0].weight.detach().T)


def add_parameter(training: dict[str, Any]) -> None:
    parameter = nn.Parameter(torch.ones(2))
    training["optimizer"].add_param_group({"params": [parameter], "lr": 0.5})
    training["optimizer"].state[parameter] = {"step": torch.tensor(1.0), "exp_avg": torch.ones(2)}


def forget_state(training: dict[str, Any]) -> None:
    training["optimizer"].state.clear()


def state_of_another_kind(training: dict[str, Any]) -> None:
    state = training["optimizer"].state
    state[next(iter(state))]["exp_avg"] = 7


CHANGES: dict[str, Callable[[dict[str, Any]], None]] = {
    "nothing": lambda training: None,
    "a step": step,
    "another tensor of the same shape": lambda t: set_parameter(t, nn.Parameter(torch.randn(4, 4))),
    "the same tensor with other memory": point_elsewhere,
    "another dtype": lambda t: t["model"].double(),
    "of one parameter": lambda t: set_parameter(t, nn.Parameter(t["model"][0].weight.detach().bfloat16())),
    "another shape": lambda t: set_parameter(t, nn.Parameter(torch.randn(2, 8))),
    "transposed": lambda t: set_parameter(t, nn.Parameter(t["model"][0].weight.detach().T)),
    "resized in place": resize,
    "tied": tie,
    "the same memory, transposed": share_as_transposed,
    "no parameter": lambda t: t["model"][0].register_parameter("weight", None),
    "no elements": lambda t: set_parameter(t, nn.Parameter(torch.zeros(0, 4))),
    "complex": lambda t: set_parameter(t, nn.Parameter(torch.randn(4, 4, dtype=torch.complex64).conj())),
    "a layer more": lambda t: t["model"].append(nn.Linear(4, 4)),
    "a parameter more": add_parameter,
    "no state of the optimizer": forget_state,
    "a number in place of a tensor": state_of_another_kind,
    "a list that grows": lambda t: t["list"].append(torch.randn(3)),
    "a dict that grows": lambda t: t["table"].update({len(t["table"]): torch.randn(3)}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_between_two_saves(change: str) -> None:
    it, saves = training(), Saves()
    saves.save(state_of(it))  # the optimizer has no state yet
    step(it)
    for _ in range(2):
        saves.save(state_of(it))
    CHANGES[change](it)
    for _ in range(2):
        saves.save(state_of(it))


A, B = torch.arange(4.0).reshape(2, 2), torch.ones(3)
DICTS: list[Any] = [
    {"a": A, "b": B},
    {"b": B, "a": A},
    {"a": B, "b": A},
    {"a": A, "c": B},
    {"a": A},
    {"a": A, "b": A},
    {"a": A, "b": A.T},
    {"a": A, "b": A[0]},
    {"a": A, "b": None},
    {"a": A, "b": [B]},
    {"a": A, "b": {"c": B}},
    {"a": A, "b": np.ones(3)},
    {"a": A, "b": B.to_sparse()},
    {"a": A, "b": torch.zeros(0)},
    {"a": nn.Parameter(A.clone()), "b": B},
    {"a": A.double(), "b": B},
    {0: A, 1: B},
    {"0": A, "1": B},
    {False: A, True: B},
    {0: A, "0": B},
    {0.0: A, 1.0: B},
    {"!a": A, "b": B},
    {"a": {"b": A, "c": B}},
    {"a": {"b": A}, "c": {"b": B}},
    {"a": {"b": A}, "c": {"b": A}},
    {"a": {"b": A}, "c": {0: B}},
    {"a": {"b": A}, "c": {}},
    {"a": {"b": A}, "c": OrderedDict(b=B)},
    {},
]
DICTS += [OrderedDict(value) for value in DICTS]


@pytest.mark.parametrize("seed", range(10))
def test_one_dict_after_another(seed: int) -> None:
    """The dicts follow in random order at two keys of the state, and must not be confused although some values are
    shared."""
    draw, saves = random.Random(seed), Saves()
    place = {"x": draw.choice(DICTS), "y": draw.choice(DICTS)}
    for _ in range(150):
        if draw.random() < 0.7:  # otherwise the same state is saved again
            place = {**place, draw.choice("xy"): draw.choice(DICTS)}
        again = saves.save(place)
        assert {name: type(value) for name, value in again.items()} == {name: type(v) for name, v in place.items()}


def test_what_cannot_be_saved_is_refused_in_a_known_place() -> None:
    saves = Saves()
    for _ in range(2):
        saves.save({"x": {"a": A, "b": B}})
    with pytest.raises(CheckpointError, match="x/b is a tensor"):
        flatten({"x": {"a": A, "b": torch.zeros(3, device="meta")}}, "")
    saves.save({"x": {"a": A, "b": B}})


def test_a_restored_training_after_all_changes(tmp_path: Path) -> None:
    """With real slots, writer and files: each save contains the state of its step."""

    class Anything:
        def __init__(self) -> None:
            self.value: Any = {"w": torch.zeros(3), "v": torch.ones(2)}

        def state_dict(self) -> Any:
            return self.value

        def load_state_dict(self, value: Any) -> None:
            self.value = value

    values: list[Any] = [
        {"w": torch.full((3,), 1.0), "v": torch.ones(2)},
        {"w": torch.full((3,), 2.0, dtype=torch.float64), "v": torch.ones(2)},
        {"w": torch.full((5,), 3.0), "v": torch.ones(2)},
        {"w": torch.full((5,), 4.0), "v": torch.ones(2), "u": torch.ones(1)},
        {"v": torch.ones(2), "w": torch.full((5,), 5.0)},
        OrderedDict(w=torch.full((5,), 6.0), v=torch.full((2,), 7.0)),
    ]
    values.append({"w": values[-1]["w"], "v": values[-1]["w"]})
    for number, value in enumerate(values, start=1):
        it = Anything()
        ckpt = restarted(it=it, folder=tmp_path, every=1)
        for step in ckpt.steps(number):
            assert step == number - 1
            it.value = value
        again = Anything()
        restarted(it=again, folder=tmp_path, every=1)
        assert type(again.value) is type(value)
        assert list(again.value) == list(value)
        for name, tensor in value.items():
            assert again.value[name].dtype == tensor.dtype
            assert torch.equal(again.value[name], tensor)
        assert (again.value["w"] is again.value["v"]) == (value["w"] is value["v"])
