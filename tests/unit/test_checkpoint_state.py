"""State as bytes: everything a state_dict may hold comes back the same; what would execute code is refused by name."""

from __future__ import annotations

import io
import os
import pickle
import random
from collections import Counter, OrderedDict
from typing import Any

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from cloudgpu.runtime.checkpoint import random_state  # noqa: E402
from cloudgpu.runtime.checkpoint import state as checkpoint_state  # noqa: E402
from cloudgpu.runtime.checkpoint.errors import CheckpointError  # noqa: E402


def there_and_back(value: Any) -> Any:
    return checkpoint_state.from_bytes(checkpoint_state.to_bytes(checkpoint_state.to_host(value, "it")))


@pytest.mark.parametrize(
    "value",
    [
        *[None, True, 3, 10**40, 0.1, float("inf"), 1j, "ü\ud800x", b"\0\xff", [1, (2, [3])], {1, 2}, {"a": {2: "b"}}],
        *[Counter([1, 1, 2]), OrderedDict(b=1, a=2), torch.float16, torch.Size([2, 3]), torch.device("cpu")],
    ],
)
def test_plain_values(value: Any) -> None:
    result = there_and_back({"value": value})["value"]
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "complex64", "int64", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 4)])
def test_tensors(dtype: str, shape: tuple[int, ...]) -> None:
    tensor = (torch.rand(shape) * 9).to(getattr(torch, dtype))
    result = there_and_back(tensor)
    assert result.dtype == tensor.dtype
    assert torch.equal(result, tensor)


def test_numpy() -> None:
    value = {
        "a": np.arange(6, dtype=">i2").reshape(2, 3),
        "s": np.float32(0.1),
        "t": np.array(["x", "yz"]),
        "e": np.zeros(0),
    }
    result = there_and_back(value)
    for key, expected in value.items():
        assert result[key].dtype == expected.dtype
        assert type(result[key]) is type(expected)
        assert np.array_equal(result[key], expected)


def test_a_copy_is_a_copy() -> None:
    model = torch.nn.BatchNorm1d(3)
    copy = checkpoint_state.to_host(model.state_dict(), "model")
    with torch.no_grad():
        model.weight.add_(1)
        model.running_mean.add_(1)
    assert torch.equal(copy["weight"], torch.ones(3))
    assert torch.equal(copy["running_mean"], torch.zeros(3))
    assert there_and_back(model.state_dict())._metadata == model.state_dict()._metadata


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/cloudgpu-was-here",)


@pytest.mark.parametrize("value", [Evil(), print, frozenset([1]), np.array([print]), torch.nn.Linear(1, 1)])
def test_what_could_execute_is_refused_when_saved(value: Any) -> None:
    with pytest.raises(CheckpointError, match=r"^sched\['x'\]\[1\] is a"):
        checkpoint_state.to_host({"x": [0, value]}, "sched")


def _torch_save(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("make", [pickle.dumps, _torch_save])
def test_nothing_executes_when_loaded(make: Any) -> None:
    with pytest.raises(ValueError, match="not a state"):
        checkpoint_state.from_bytes(make({"x": Evil()}))


@pytest.mark.parametrize("data", [b"", b"PK\3\4", b"x" * 100, b"\x80\x02."])
def test_rubbish_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a state"):
        checkpoint_state.from_bytes(data)


def test_random_state_of_every_generator() -> None:
    own = torch.Generator().manual_seed(5)

    def draw() -> tuple[Any, ...]:
        # gauss() keeps half of a pair for the next call: that half is state too.
        drawn = random.random(), random.gauss(0, 1), np.random.normal(), np.random.randint(9)
        return *drawn, torch.randn(3).tolist(), torch.rand(1, generator=own).item()

    draw()
    state = there_and_back(random_state.capture([own]))
    first = draw()
    assert draw() != first
    random_state.restore(state, [own])
    assert draw() == first
