"""The variables of a program: what has changed is saved through the checkpoint's format, and put back in place."""

from __future__ import annotations

import io
import itertools
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.runtime.attach.program.frame_inspection import Code
from cloudgpu.runtime.attach.state.sampler_state import SamplerSnapshot, restored
from cloudgpu.runtime.attach.state.variables import UnsavableError, Variables, digests
from cloudgpu.runtime.checkpoint.format.tree import flatten
from cloudgpu.runtime.checkpoint.restore.rebuild import rebuild

torch = pytest.importorskip("torch")

PROGRAM = """
import collections, dataclasses, enum, typing, pathlib
import numpy as np, torch
@dataclasses.dataclass(slots=True)
class Slots:
    seen: int = 0
class Old:
    __slots__ = ("n", "items")
    def __init__(self): self.n, self.items = 0, []
class Classwide:
    count = 0
    history = []
class Pair(typing.NamedTuple):
    a: int
    b: list
class Phase(enum.Enum):
    WARM = 1
    HOT = 2
class Registry(dict):
    def __init__(self): super().__init__(); self.best = 0
class Series(list): pass
def counter():
    n = 0
    def step():
        nonlocal n
        n += 1
        return n
    return step
def call(): call.calls += 1
call.calls = 0
def defaults(seen=[]): seen.append(1); return seen
def setup():
    torch.manual_seed(0)
    g = dict(slots=Slots(), old=Old(), pair=Pair(1, []), phase=Phase.WARM, registry=Registry(), series=Series(),
        step=counter(), table=torch.zeros(70000), weight=torch.nn.Parameter(torch.ones(3)), ema={"w": torch.zeros(2)},
        frozen=torch.nn.Linear(2, 2), drop=torch.nn.Dropout(0.5), counts=np.zeros(5), where=pathlib.Path("a"),
        queue=collections.deque(maxlen=3), history=[], data=torch.arange(10.), best=None,
        maps=collections.defaultdict(list), wide=collections.Counter(), nan=float("nan"))
    g["alias"] = g["history"]
    globals().update(g)
"""

CHANGES: dict[str, str] = {
    "slots of a dataclass": "slots.seen = 3",
    "slots": "old.n = 2; old.items.append(1)",
    "class attributes": "Classwide.count += 2; Classwide.history.append(5)",
    "a named tuple": "globals().update(pair=Pair(2, [1, 2]))",
    "an enum": "globals().update(phase=Phase.HOT)",
    "a subclass of dict": "registry['k'] = 1; registry.best = 4",
    "a subclass of list": "series.extend([1, 2.5])",
    "a closure": "step(); step()",
    "an attribute of a function": "call(); call()",
    "a default that is a list": "defaults(); defaults()",
    "a large tensor": "table.data[5] = 1",
    "a loose parameter": "weight.data.mul_(2)",
    "tensors in a dict": "ema['w'].data.add_(1); ema['new'] = torch.ones(4)",
    "requires_grad": "frozen.weight.requires_grad_(False)",
    "the mode of a module": "frozen.eval()",
    "an attribute of a module": "drop.p = 0.1",
    "an array": "counts[2] = 7",
    "a path": "globals().update(where=pathlib.Path('b'))",
    "a deque": "queue.extend(range(9))",
    "a list and its alias": "history.append(1)",
    "a large list": "history.extend(range(200_000))",
    "a deep copy of weights": "import copy; globals().update(best=copy.deepcopy(ema))",
    "an object made while training": "globals().update(best=Slots(9))",
    "a list of objects": "globals().update(best=[Slots(1), Slots(2)])",
    "a default dict": "maps['a'].append(1); wide['x'] += 2",
    "a new name": "globals().update(fresh=[1, {2: (3, {4})}])",
    "an attribute that goes": "del registry.best",
    "a tensor that grows": "globals().update(table=torch.ones(70001)); ema['w'] = torch.ones(5)",
    "an array that grows": "globals().update(counts=np.ones(7)); old.items = np.ones(3)",
    "another kind of object": "globals().update(maps={}, data=[1], old=Slots(3))",
    "dicts of other types": "O = collections.OrderedDict; globals().update(best=O(a=1), ema=collections.Counter('ab'))",
    "a queue made while training": "globals().update(queue=collections.deque([1], 5), old=collections.deque([], 2))",
    "a shape and a time": "globals().update(best=(torch.zeros(2, 3).shape, __import__('time').gmtime(0)))",
    "a distribution": "globals().update(best=torch.distributions.Normal(torch.zeros(2), torch.ones(2)))",
    "a variable that leads to what was there": "globals().update(first=frozen.weight); history.append(frozen)",
}


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[[], tuple[Variables, dict[str, Any]]]]:
    """Start the program anew: returns its variables, and its globals."""
    before = sys.modules["__main__"]
    file = tmp_path / "train.py"
    file.write_text(PROGRAM)

    def start() -> tuple[Variables, dict[str, Any]]:
        module = types.ModuleType("__main__")
        sys.modules["__main__"] = module
        exec(compile(PROGRAM, str(file), "exec"), module.__dict__)
        module.__dict__["setup"]()
        return Variables(Code(tmp_path)), module.__dict__

    yield start
    sys.modules["__main__"] = before


def through_a_file(state: dict[str, Any]) -> Any:
    tree, leaves = flatten(state, "variables")
    kept = {key: value.clone() if hasattr(value, "clone") else value.copy() for key, value in leaves.items()}
    return rebuild(tree, kept.__getitem__)


def content(variables: Variables) -> Any:
    """Everything there is, by digests."""
    return digests(variables.graph())


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_is_put_back(program: Any, change: str) -> None:
    variables, names = program()
    variables.begin()
    exec(CHANGES[change], names)
    expected, state = content(variables), through_a_file(variables.state_dict())
    assert state["changed"]
    resumed, names = program()
    assert content(resumed) != expected
    resumed.load_state_dict(state)
    assert content(resumed) == expected
    assert names["alias"] is names["history"]
    assert through_a_file(resumed.state_dict())["changed"].keys() == state["changed"].keys(), "saved ever after"


def test_what_has_not_changed_is_left_to_the_program(program: Any) -> None:
    variables, _ = program()
    variables.begin()
    state = variables.state_dict()
    assert set(state["changed"]) <= {"__main__"}
    assert "data" not in str(state["changed"])


def test_a_tensor_is_put_back_where_it_is(program: Any) -> None:
    variables, names = program()
    variables.begin()
    names["weight"].data.mul_(3)
    state = through_a_file(variables.state_dict())
    resumed, names = program()
    live = names["weight"]
    resumed.load_state_dict(state)
    assert names["weight"] is live
    assert live.tolist() == [3, 3, 3]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ("globals().update(best=itertools.count())", "best"),
        ("next(ticks)", "ticks"),
        ("globals().update(best=lambda: 1)", "best"),
        ("globals().update(best=torch.nn.Linear(1, 1))", "best"),
        ("globals().update(best=[1, (x for x in 'a')])", "best"),
        ("next(letters)", "letters"),
        ("text.write('a line')", "text"),
        ("history.append(__import__('logging').getLogger())", "history"),
    ],
)
def test_what_cannot_be_saved_is_named(program: Any, change: str, name: str) -> None:
    variables, names = program()
    names.update(itertools=itertools, ticks=itertools.count(), letters=(x for x in "abc"), text=io.StringIO())
    variables.begin()
    variables.state_dict()
    exec(compile(change, names["setup"].__code__.co_filename, "exec"), names)
    with pytest.raises(UnsavableError, match=f"__main__.{name}"):
        variables.state_dict()


def test_a_parameter_keeps_its_path_when_a_variable_before_leads_to_it(
    program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = program()[1]["setup"].__code__.co_filename
    names = sys.modules["__main__"].__dict__
    model = names["frozen"]
    module = types.ModuleType("model")  # has the name of the root
    module.__file__ = file
    monkeypatch.setitem(sys.modules, "model", module)
    variables = Variables(Code(Path(file).parent), lambda: {"model": model})
    variables.begin()
    names["alias_of_weight"] = model.weight
    state = variables.state_dict()
    assert not any("alias_of_weight" in path for path in state["changed"])


SAMPLER = """
import random
class Batches:
    def __init__(self): self.order, self.epoch, self.seen = list(range(8)), 0, []
    def __iter__(self):
        random.shuffle(self.order)
        self.epoch += 1
        self.seen = [*self.seen, self.epoch]
        return iter([[i] for i in self.order])
    def __len__(self): return 8
"""


def test_a_sampler_is_as_before_its_draw_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("__main__")
    exec(compile(SAMPLER, str(tmp_path / "train.py"), "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, "__main__", module)
    sampler, code = module.__dict__["Batches"](), Code(tmp_path)
    loader = torch.utils.data.DataLoader(list(range(8)), batch_sampler=sampler)
    list(loader)
    before = {name: list(one) if isinstance(one, list) else one for name, one in vars(sampler).items()}
    drawn, order = SamplerSnapshot(code, loader), sampler.order
    list(loader)
    after = {name: list(one) if isinstance(one, list) else one for name, one in vars(sampler).items()}
    with restored(code, loader, through_a_file(drawn.changed())):
        assert vars(sampler) == before
        list(loader)
    assert vars(sampler) == after
    assert sampler.order is order


def test_an_object_that_cannot_be_examined_is_named(program: Any) -> None:
    variables, names = program()
    names["gen"] = (x for x in "ab")
    graph = variables.graph()
    assert variables.unknown(graph) == ["__main__.gen (generator)"]
