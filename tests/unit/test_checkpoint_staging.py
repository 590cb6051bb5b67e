"""Staging: every piece is copied to the offset in its manifest, for any memory layout of the tensor."""

from __future__ import annotations

import mmap
import subprocess
import sys
import textwrap
from typing import Any

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from cloudgpu.runtime.checkpoint.format.manifest import ALIGN, ITEM_SIZE  # noqa: E402
from cloudgpu.runtime.checkpoint.format.tree import flatten  # noqa: E402
from cloudgpu.runtime.checkpoint.save.staging import Stager  # noqa: E402


def stage(stager: Stager, leaves: dict[str, Any], slot: int = 0, memory: Any = None) -> dict[str, bytes]:
    layout, sources = stager.lay_out(leaves)
    memory = memoryview(mmap.mmap(-1, max(layout.size, 1))) if memory is None else memory
    stager.copy(layout, sources, slot, memory)
    assert all(piece.at % ALIGN == 0 for piece in layout.pieces)
    ends = [piece.at + piece.size for piece in layout.pieces]
    assert all(end <= piece.at for end, piece in zip(ends, layout.pieces[1:], strict=False))
    assert max(ends, default=0) <= layout.size
    return {piece.key: bytes(memory[piece.at : piece.at + piece.size]) for piece in layout.pieces}


def raw(tensor: Any) -> bytes:
    """Return the bytes in memory order, or in row-major order if the tensor has gaps."""
    in_memory = tensor.permute(sorted(range(tensor.dim()), key=lambda dim: -tensor.stride(dim)))
    tensor = in_memory if in_memory.is_contiguous() else tensor
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


TENSORS = {
    "plain": torch.randn(5, 7),
    "scalar": torch.tensor(3.5),
    "empty": torch.zeros(0, 4),
    "transposed": torch.randn(6, 4).T,
    "strided": torch.randn(20)[::3],
    "expanded": torch.randn(3, 1).expand(3, 5),
    "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "parameter": torch.nn.Parameter(torch.randn(3)),
    "conjugate": torch.randn(4, dtype=torch.complex64).conj(),
    "negative": torch.randn(4, dtype=torch.complex64).conj().imag,
    "large": torch.randn(300_000),
}


@pytest.mark.parametrize("name", TENSORS)
def test_shapes_of_memory(name: str) -> None:
    tensor = TENSORS[name]
    resolved = tensor.detach().resolve_conj().resolve_neg()
    assert stage(Stager(), {"before": torch.ones(3), name: tensor, "after": torch.ones(1)})[name] == raw(resolved)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", sorted(ITEM_SIZE))
def test_every_dtype(dtype: str) -> None:
    bits = torch.arange(64, dtype=torch.uint8) % 2 if dtype == "bool" else torch.arange(64, dtype=torch.uint8)
    tensor = bits.view(getattr(torch, dtype)).reshape(2, -1)
    result = stage(Stager(), {"scalar": tensor[0, 0], "tensor": tensor, "transposed": tensor.T})
    assert result["tensor"] == raw(tensor)
    assert len(result["scalar"]) == ITEM_SIZE[dtype]
    assert result["transposed"] == raw(tensor)


def test_arrays() -> None:
    arrays = {"a": np.arange(6.0).reshape(2, 3).T, "b": np.array(3), "c": np.zeros((0, 2)), "d": np.array(["ü"])}
    arrays["e"] = np.frombuffer(b"read-only", dtype=np.uint8)
    _, leaves = flatten(arrays, "")
    assert stage(Stager(), leaves) == {key: array.tobytes("A") for key, array in arrays.items()}


def test_what_changes_between_saves_is_seen() -> None:
    """Only offsets are cached between saves: values, objects, dtypes, shapes and keys may all change."""
    stager, memory = Stager(), memoryview(mmap.mmap(-1, 4096))
    a, b = torch.ones(3), torch.zeros(2, dtype=torch.int64)
    first = stager.lay_out({"a": a, "b": b})[0]
    assert stage(stager, {"a": a, "b": b}, 0, memory) == {"a": raw(a), "b": raw(b)}
    a.add_(1)
    assert stage(stager, {"a": a, "b": b}, 0, memory)["a"] == raw(torch.full((3,), 2.0))
    assert stage(stager, {"a": torch.full((3,), 9.0), "b": b}, 0, memory)["a"] == raw(torch.full((3,), 9.0))
    assert stager.lay_out({"a": a, "b": b})[0] is first
    for other in (a.double(), torch.ones(1, 3), torch.ones(4), np.arange(3, dtype=np.float32)):
        assert stage(stager, {"a": other, "b": b}, 0, memory)["a"] == raw(torch.as_tensor(other))
    assert stage(stager, {"a": a}, 0, memory) == {"a": raw(a)}
    assert stage(stager, {"c": b, "a": a}, 0, memory) == {"c": raw(b), "a": raw(a)}


def test_slots_and_their_memory_may_be_others() -> None:
    stager, tensor = Stager(), torch.arange(5.0)
    memories = [memoryview(mmap.mmap(-1, 64)) for _ in range(3)]
    for slot, memory in ((0, memories[0]), (1, memories[1]), (0, memories[2])):
        tensor.add_(1)
        assert stage(stager, {"a": tensor}, slot, memory)["a"] == raw(tensor)
        assert bytes(memory[:20]) == raw(tensor)
    stager.release()
    memories[2].release()  # raises BufferError if a buffer is still exported


def test_ten_thousand_small_tensors_take_one_call() -> None:
    calls = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    stager, memory = Stager(), memoryview(mmap.mmap(-1, 1000 * 64))
    leaves = {str(number): torch.randn(3) for number in range(1000)}
    stage(stager, leaves, 0, memory)
    with calls:
        stage(stager, leaves, 0, memory)
    assert {event.key: event.count for event in calls.key_averages()}["aten::_foreach_copy_"] == 1


def test_without_torch() -> None:
    program = """
        import sys
        sys.modules["torch"] = None
        import numpy as np
        from cloudgpu.runtime.checkpoint.save.staging import Stager
        stager, memory = Stager(), memoryview(bytearray(256))
        layout, sources = stager.lay_out({"a": np.arange(3.0), "b": np.float32([1])})
        stager.copy(layout, sources, 0, memory)
        assert bytes(memory[:24]) == np.arange(3.0).tobytes() and bytes(memory[64:68]) == np.float32(1).tobytes()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)


def test_dtensors_by_their_local_parts() -> None:
    """On one rank of four in a 2 × 2 mesh: its local part with its position in the whole tensor; replicas are saved
    once."""
    program = """
        import torch
        import torch.distributed as dist
        from torch.distributed.tensor import DTensor, Replicate, Shard, init_device_mesh
        from torch.testing._internal.distributed.fake_pg import FakeStore
        from cloudgpu.runtime.checkpoint.save.staging import Stager
        from cloudgpu.runtime.checkpoint.format.tree import flatten
        for rank in range(4):
            dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=4)
            mesh = init_device_mesh("cpu", (2, 2))
            copies, whole = Replicate(), {"shape": (1, 2), "stride": (2, 1)}
            state = {
                "hsdp": DTensor.from_local(torch.ones(2, 3), mesh, [copies, Shard(0)]),
                "both": DTensor.from_local(torch.ones(2, 3), mesh, [Shard(0), Shard(1)]),
                "copy": DTensor.from_local(torch.ones(2), mesh, [copies, copies]),
                "uneven": DTensor.from_local(torch.ones(1 - rank % 2, 2), mesh, [copies, Shard(0)], **whole),
            }
            layout, sources = Stager().lay_out(flatten(state, "m")[1])
            print([(p.key, p.shape, p.whole, p.starts) for p in layout.pieces])
            dist.destroy_process_group()
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    answers = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    both = [("m/both", (2, 3), (4, 6), starts) for starts in ((0, 0), (0, 3), (2, 0), (2, 3))]
    assert [eval(answer) for answer in answers] == [
        [
            ("m/hsdp", (2, 3), (4, 3), (0, 0)),
            both[0],
            ("m/copy", (2,), (2,), (0,)),
            ("m/uneven", (1, 2), (1, 2), (0, 0)),
        ],
        [("m/hsdp", (2, 3), (4, 3), (2, 0)), both[1]],
        [both[2]],
        [both[3]],
    ]
