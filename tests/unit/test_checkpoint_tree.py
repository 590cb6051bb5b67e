"""The state as a tree: every supported value survives a round trip, and values that would execute code are refused by
name."""

from __future__ import annotations

import enum
import json
import random
import subprocess
import sys
import textwrap
from collections import Counter, OrderedDict, defaultdict
from typing import Any

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from torch import nn  # noqa: E402

from cloudgpu.runtime.checkpoint.data import random_state  # noqa: E402
from cloudgpu.runtime.checkpoint.errors import CheckpointError  # noqa: E402
from cloudgpu.runtime.checkpoint.format.manifest import ITEM_SIZE  # noqa: E402
from cloudgpu.runtime.checkpoint.format.tree import flatten  # noqa: E402
from cloudgpu.runtime.checkpoint.restore.rebuild import rebuild  # noqa: E402


def there_and_back(value: Any) -> Any:
    tree, leaves = flatten(value, "it")
    return rebuild(json.loads(json.dumps(tree, allow_nan=False)), leaves.__getitem__)


PLAIN = [
    *[None, True, 3, 10**40, 0.1, -0.0, float("inf"), float("-inf"), 1j, complex("nan+1j"), "ü\ud800x", "!tag"],
    *[b"\0\xff", bytearray(b"x"), [], [1, (2, [3.0])], [1.0, float("inf")], {1, 2}, frozenset([1]), ()],
    *[{}, {"a": {2: "b"}}, {(1, 2): 3, None: 4, True: 5, 1.5: 6}, {"!tensor": "x"}, {"a/b": 1, "a~1b": 2}],
    *[Counter([1, 1, 2]), OrderedDict(b=1, a=2), defaultdict(list, {"a": [1]}), defaultdict(None, {1: 2})],
    *[torch.float16, torch.Size([2, 3]), torch.Size([]), torch.device("cpu"), torch.device("cuda:1")],
    *[{"version": 3, "state": (3, tuple(range(625)), None)}, random.Random(1).getstate()],
]


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: repr(value)[:30])
def test_plain_values(value: Any) -> None:
    result = there_and_back({"value": value})["value"]
    assert repr(result) == repr(value)  # compared by repr because of NaN; the order must be kept, too
    assert type(result) is type(value)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", sorted(ITEM_SIZE))
@pytest.mark.parametrize("shape", [(), (0,), (3, 4)])
def test_every_dtype(dtype: str, shape: tuple[int, ...]) -> None:
    kind = getattr(torch, dtype, None)
    if kind is None:
        pytest.skip("not in this version of torch")
    tensor = torch.empty(shape, dtype=kind)
    assert tensor.element_size() == ITEM_SIZE[dtype]
    assert there_and_back(tensor) is tensor


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("layout", ["coo", "uncoalesced", "csr", "csc", "bsr", "bsc"])
def test_sparse(layout: str) -> None:
    dense = torch.tensor([[0.0, 1, 0, 2], [0, 0, 3, 0]])
    if layout == "uncoalesced":
        tensor = torch.sparse_coo_tensor(torch.tensor([[0, 0], [1, 1]]), torch.tensor([1.0, 2.0]), (2, 2))
    elif layout == "coo":
        tensor = dense.to_sparse()
    else:
        options = {"blocksize": (1, 2)} if layout.startswith("bs") else {}
        tensor = getattr(dense, f"to_sparse_{layout}")(**options)
    result = there_and_back(tensor)
    assert result.layout == tensor.layout
    assert torch.equal(result.to_dense(), tensor.to_dense())
    if "coo" in layout:
        assert result.is_coalesced() == tensor.is_coalesced()


def test_numpy() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    value = {
        "a": np.arange(6, dtype=">i2").reshape(2, 3),
        "b": np.arange(6, dtype="f4").reshape(2, 3).T,
        "c": np.array(["x", "yz"]),
        "d": np.zeros(0),
        "e": np.array(3.0),
        "f": np.arange(3).astype(ml_dtypes.bfloat16),
        "g": np.array(["2026-11-20"], dtype="M8[D]"),
        "h": np.float32(0.1),
        "i": np.int64(-3),
        "j": np.str_("ü"),
        "k": np.bool_(True),
        "l": np.random.default_rng(3).bit_generator.state,
    }
    result = there_and_back(value)
    for key, expected in value.items():
        assert type(result[key]) is type(expected), key
        if isinstance(expected, np.ndarray | np.generic):
            assert result[key].dtype == expected.dtype
            assert result[key].shape == expected.shape
        assert np.array_equal(result[key], expected), key
    # A reader that has torch may return tensors.
    tree, leaves = flatten({"b": value["b"], "e": value["e"]}, "it")
    result = rebuild(tree, lambda key: torch.from_numpy(np.ascontiguousarray(leaves[key]).reshape(leaves[key].shape)))
    assert np.array_equal(result["b"], value["b"])
    assert result["e"].shape == ()


def test_keys_are_paths_and_never_the_same_twice() -> None:
    a, b, c, d = (torch.full((1,), float(number)) for number in range(4))
    tree, leaves = flatten({"a/b": a, "a": {"b": b}, "n": {0: c, "0": d}}, "")
    assert list(leaves) == ["a~1b", "a/b", "n/0", "n/0~2"]
    assert [value.item() for value in leaves.values()] == [0, 1, 2, 3]
    result = rebuild(tree, leaves.__getitem__)
    assert (result["n"][0], result["n"]["0"]) == (c, d)


def test_a_whole_training() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9)
    state = {name: item.state_dict() for name, item in locals().items()}
    tree, leaves = flatten({"objects": state}, "")
    assert {"objects/model/0.weight", "objects/model/1.num_batches_tracked"} < set(leaves)
    assert {"objects/optimizer/state/0/exp_avg", "objects/optimizer/state/3/step"} < set(leaves)
    result = rebuild(json.loads(json.dumps(tree)), leaves.__getitem__)["objects"]
    assert repr(result) == repr(state)
    assert result["model"]._metadata == state["model"]._metadata
    assert list(result["optimizer"]["state"]) == [0, 1, 2, 3]


def test_tied_weights_are_one_leaf() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
            self.head.weight = self.embedding.weight

    model = Tied()
    tree, leaves = flatten(model.state_dict(), "m")
    assert list(leaves) == ["m/embedding.weight"]
    asked: list[str] = []

    def leaf(key: str) -> Any:
        asked.append(key)
        return leaves[key].clone()

    result = rebuild(tree, leaf)
    assert result["head.weight"] is result["embedding.weight"]
    assert asked == ["m/embedding.weight"]
    # Tensors that share a start address but are different values.
    whole = torch.arange(6.0).reshape(2, 3)
    assert len(flatten([whole, whole.view(torch.int32)], "v")[1]) == 2
    pair = torch.zeros(2, dtype=torch.complex64)
    assert len(flatten([pair, pair.conj()], "v")[1]) == 2
    assert len(flatten([torch.zeros(0), torch.zeros(0)], "v")[1]) == 2


class Colour(enum.Enum):
    RED = 1


class Evil:
    def __reduce__(self) -> Any:
        return print, ("executed",)


class Wrapped(torch.Tensor):  # type: ignore[name-defined]
    """Build a tensor as quantisation libraries do: the numbers are in another object."""

    @staticmethod
    def __new__(cls, inner: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape)

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("value", "message"),
    [
        *[(Evil(), "Evil, which"), (print, "builtin_function_or_method"), (nn.Linear(1, 1), r"linear\.Linear")],
        *[(Colour.RED, "Colour"), (np.array([print]), "array of Python objects"), (iter([]), "list_iterator")],
        *[
            (np.zeros(2, dtype="i4,f4"), "its parts"),
            (np.ma.array([1], mask=[1]), "Masked"),
            ({torch.ones(1): 1}, "key"),
        ],
        (torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "qint8, .* dequantise"),
        (torch.ones(2, device="meta"), "'meta' that holds no data"),
        (nn.LazyLinear(3).weight, "not initialised yet"),
        (Wrapped(torch.ones(2)), "Wrapped, a kind of tensor"),
        (defaultdict(lambda: 3), "factory is code"),
        (torch.ones(2).to_mkldnn() if torch.backends.mkldnn.is_available() else Evil(), "Evil|layout _mkldnn"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_rebuilt_is_refused_by_name(value: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=rf"^objects/sched/x/1 .*({message})"):
        flatten({"sched": {"x": [0, value]}}, "objects")


def test_subclasses_that_are_tensors_all_the_same() -> None:
    class Image(torch.Tensor):  # type: ignore[name-defined]
        pass

    result = there_and_back([torch.ones(3).as_subclass(Image), nn.Parameter(torch.ones(2)), nn.Buffer(torch.zeros(1))])
    assert [tensor.sum().item() for tensor in result] == [3, 2, 0]


@pytest.mark.parametrize(
    "tree", [{"!evil": 1}, {"!dict": 3}, {"!dtype": "load"}, {"!sparse": "x", "parts": {}}, {"!": 0}]
)
def test_rubbish_is_refused(tree: Any) -> None:
    with pytest.raises(ValueError, match="not a tree"):
        rebuild([tree], dict[str, Any]().__getitem__)


def test_random_state_of_every_generator() -> None:
    own = torch.Generator().manual_seed(5)

    def draw() -> tuple[Any, ...]:
        # gauss() caches the second value of each pair: the cached value is part of the state.
        drawn = random.random(), random.gauss(0, 1), np.random.normal(), np.random.randint(9)
        return *drawn, torch.randn(3).tolist(), torch.rand(1, generator=own).item()

    draw()
    state = there_and_back(random_state.capture(random_state.generators_of([own])))
    first = draw()
    assert draw() != first
    random_state.restore(state, random_state.generators_of([own]))
    assert draw() == first


def test_without_torch() -> None:
    program = """
        import sys, json
        sys.modules["torch"] = None
        import numpy as np
        from cloudgpu.runtime.checkpoint.restore.rebuild import rebuild
        from cloudgpu.runtime.checkpoint.format.tree import flatten
        tree, leaves = flatten({"w": np.arange(3.0), "n": (1, {2})}, "m")
        result = rebuild(json.loads(json.dumps(tree)), leaves.__getitem__)
        assert result["w"].tolist() == [0, 1, 2] and result["n"] == (1, {2}), result
        try:
            flatten(object(), "m")
        except Exception as error:
            print(error)
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True
    )
    assert result.stdout.startswith("m is a builtins.object, which cannot be saved")


# Shared objects


def test_one_list_under_two_keys() -> None:
    """Containers, arrays and tensors that were one object are one again, as with torch.save."""
    objects: list[Any] = [[1], {"a": 1}, {1: 2}, {3}, bytearray(b"x"), OrderedDict(a=1), Counter("a")]
    objects += [defaultdict(list, {"a": [1]}), np.arange(3.0), np.array(1.0), torch.arange(3.0)]
    value = there_and_back({"first": objects, "between": [[], {}, ([0],)], "second": [(one, [1]) for one in objects]})
    for one, (other, _) in zip(value["first"], value["second"], strict=True):
        assert one is other
    assert repr(value["first"]) == repr(objects)
    value = there_and_back([[1], [1], (), ()])
    assert value[0] is not value[1]


def test_what_contains_itself() -> None:
    state: dict[str, Any] = {"losses": [1]}
    state["me"] = state
    state["losses"].append((state["losses"], state))
    again = there_and_back({"state": state})["state"]
    assert again["me"] is again
    assert again["losses"][1][0] is again["losses"]
    assert again["losses"][1][1] is again


BASE = torch.arange(24.0).reshape(4, 6)
VIEWS: dict[str, list[Any]] = {
    "a row": [BASE, BASE[1]],
    "a row first": [BASE[1], BASE],
    "transposed": [BASE.T, BASE],
    "a column": [BASE, BASE[:, 2]],
    "every second": [BASE[::2, 1::2], BASE],
    "flat": [BASE, BASE.view(-1), BASE.view(2, 12)],
    "expanded": [BASE, BASE[0].expand(3, 6)],
    "inputs and targets": [BASE.view(-1)[:-1], BASE.view(-1)[1:]],
    "columns in channels_last": [(last := torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)), last[:, 1]],
    "of a parameter": [nn.Parameter(BASE.clone())],
}
VIEWS["of a parameter"].append(VIEWS["of a parameter"][0].detach()[2])


@pytest.mark.parametrize("name", VIEWS)
def test_views_of_one_memory_are_views_again(name: str) -> None:
    tensors = VIEWS[name]
    tree, leaves = flatten({"views": tensors, "again": tensors[-1]}, "state")
    assert len(leaves) == 1, "saved once"
    again = rebuild(json.loads(json.dumps(tree)), lambda key: leaves[key].detach().clone())
    for one, other in zip(tensors, again["views"], strict=True):
        assert torch.equal(one, other)
        assert one.stride() == other.stride()
    assert again["again"] is again["views"][-1]
    assert len({one.untyped_storage().data_ptr() for one in again["views"]}) == 1
    apart, as_before = ([one.storage_offset() for one in them] for them in (again["views"], tensors))
    assert apart[1] - apart[0] == as_before[1] - as_before[0]


@pytest.mark.parametrize(
    "tensors",
    [[BASE[0], BASE[1]], [BASE[:, 0], BASE[:, 1]], [BASE, BASE.view(torch.int32)], [BASE[:, :2], BASE[3, 2:]]],
    ids=["rows", "columns without the whole", "another dtype", "one after the other"],
)
def test_views_that_are_saved_by_themselves(tensors: list[Any]) -> None:
    tree, leaves = flatten(tensors, "state")
    assert [leaf.numel() for leaf in leaves.values()] == [tensor.numel() for tensor in tensors]
    assert "!view" not in json.dumps(tree)


def test_arrays_keep_their_order() -> None:
    value = {"c": np.ones((2, 3)), "f": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "swapped": None}
    value["swapped"] = np.asfortranarray(np.arange(6, dtype=">i2").reshape(2, 3))
    again = there_and_back(value)
    for name, array in value.items():
        assert np.array_equal(array, again[name])
        assert array.flags.f_contiguous == again[name].flags.f_contiguous


# Limits


def test_integers_of_any_length() -> None:
    large = 10**5000
    values = [large, -large, 2**64, [1, large], [-large], {large: 1}, (10**599, 10**600, 10**600 - 1)]
    assert there_and_back(values) == values
    previous = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        assert there_and_back(values) == values
    finally:
        sys.set_int_max_str_digits(previous)


@pytest.mark.parametrize(
    "wrap",
    [
        *[lambda inner: [inner], lambda inner: (inner,), lambda inner: {"a": inner}, lambda inner: {0: inner}],
        *[lambda inner: OrderedDict(a=inner), lambda inner: defaultdict(list, {"a": inner})],
    ],
    ids=["list", "tuple", "dict", "dict by number", "OrderedDict", "defaultdict"],
)
def test_depth(wrap: Any) -> None:
    """State nested deeper than can be read back is refused with its path; shallower state is saved."""
    value: Any = 1
    for _ in range(198):
        value = wrap(value)
    assert repr(there_and_back({"x": value})) == repr({"x": value})
    for _ in range(2000):
        value = wrap(value)
    with pytest.raises(CheckpointError, match=r"^state/x/.*… lies 200 levels deep"):
        flatten({"x": value}, "state")


def test_nested_tensors_are_refused_by_name() -> None:
    for layout in (torch.strided, torch.jagged):
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)
        with pytest.raises(CheckpointError, match=r"^state/x is a (nested tensor|.*NestedTensor, a kind of tensor)"):
            flatten({"x": nested}, "state")
