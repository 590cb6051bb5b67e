"""Loops are rewritten so that the place in them is known; what can be brought to its place, and what cannot."""

from __future__ import annotations

import ast
import itertools
import traceback
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.runtime.attach.program import loops
from cloudgpu.runtime.attach.program.frame_inspection import Code
from cloudgpu.runtime.attach.program.liveness import dead_names, skips_by_number
from cloudgpu.runtime.attach.program.loops import UnknownIterableError
from cloudgpu.runtime.attach.program.rewrite import HOOK, Rewriter

PROGRAM = b"""from __future__ import annotations
def f(n: Undefined):
    found = []
    for i in range(n):
        for j in 'ab':
            found.append((i, j))
        else:
            found.append(i)
    return [x for x in found if x]
class A:
    def g(self):
        for i in [1]:
            raise ValueError(
                i)
"""


def run(sites: list[str]) -> dict[str, Any]:
    def hook(source: Any, site: str) -> Any:
        sites.append(site)
        return source

    variables: dict[str, Any] = {HOOK: hook}
    exec(Rewriter(Code(Path("/nowhere"))).compile(PROGRAM, "/p/train.py"), variables)
    return variables


def test_loops_go_through_the_hook_and_do_what_they_did() -> None:
    sites: list[str] = []
    plain: dict[str, Any] = {}
    exec(PROGRAM, plain)
    assert run(sites)["f"](2) == plain["f"](2)
    assert sites == ["train.py: f: for i in range(n)", *["train.py: f: for j in 'ab'"] * 2]


def test_tracebacks_show_the_lines_of_the_program() -> None:
    with pytest.raises(ValueError, match="1") as raised:
        run([])["A"]().g()
    assert traceback.extract_tb(raised.value.__traceback__)[-1].lineno == 13


def test_two_loops_with_one_text_are_told_apart() -> None:
    rewriter = Rewriter(Code(Path("/nowhere")))
    rewriter.compile(b"for i in x: pass\nfor i in x: pass", "train.py")
    assert list(rewriter.loops) == ["train.py: <module>: for i in x", "train.py: <module>: for i in x #2"]


def test_what_a_program_imports_and_whether_it_trains() -> None:
    rewriter = Rewriter(Code(Path("/nowhere")))
    rewriter.compile(b"def f():\n  from a.b import c\n  import d.e as g\n  c.backward()", "train.py")
    assert rewriter.imports == {"a", "d"}
    assert rewriter.trains


@pytest.mark.parametrize(
    "make",
    [
        lambda: range(3, 9),
        lambda: [1, 2, 3, 4],
        {"a": 1, "b": 2, "c": 3}.items,
        lambda: enumerate("abcd", 5),
        lambda: zip(range(4), "abcd", strict=False),
        lambda: reversed([1, 2, 3]),
        lambda: itertools.product([1, 2], [3, 4]),
        lambda: enumerate(zip([1, 2, 3], itertools.count(), strict=False)),
    ],
)
def test_a_loop_round_the_training_goes_on_at_its_item(make: Any) -> None:
    loop = loops.Loop("", 0, make())
    assert list(loops.skip_items(loop, 2, None)) == list(make())[2:]
    assert loop.count == 2


def test_a_range_that_begins_later_goes_on_at_its_number() -> None:
    """As in a program that resumes by itself: `for epoch in range(start_epoch, epochs)`."""
    assert list(loops.skip_items(loops.Loop("", 0, range(5, 9)), 3, 4)) == [4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    "source", [{1, 2}, (x for x in "ab"), map(str, "ab"), iter(lambda: 1, 2), itertools.cycle("a")]
)
def test_other_iterables_are_refused(source: Any) -> None:
    for iterable in (source, enumerate(source)):
        with pytest.raises(UnknownIterableError):
            loops.check_pure(iterable)


class Loader:
    """Stands for a pass through a DataLoader, which gives the rest by itself."""

    def __init__(self, *batches: int) -> None:
        self._batches = iter(batches)

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> int:
        return next(self._batches)


def is_loader(source: Any) -> bool:
    return isinstance(source, Loader)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda loader: loader, [7, 8, 9]),
        (enumerate, [(2, 7), (3, 8), (4, 9)]),
        (lambda loader: enumerate(loader, 10), [(12, 7), (13, 8), (14, 9)]),
        (lambda loader: zip(range(4), loader, strict=False), [(2, 7), (3, 8)]),
        (lambda loader: itertools.islice(loader, 3), [7]),
        (lambda loader: enumerate(itertools.islice(loader, 4)), [(2, 7), (3, 8)]),
    ],
)
def test_the_counters_of_the_training_loop_go_on(make: Any, expected: list[Any]) -> None:
    source = make(Loader(7, 8, 9))
    loops.check_batches(source, is_loader)
    assert list(loops.continue_batches(source, 2, is_loader)) == expected


@pytest.mark.parametrize(
    "source",
    [
        itertools.cycle([1]),
        (x for x in [1]),
        zip(Loader(), Loader(), strict=False),
        map(str, Loader()),
        itertools.islice(Loader(1, 2, 3), 1, 3),
    ],
)
def test_other_ways_through_a_loader_are_refused(source: Any) -> None:
    with pytest.raises(UnknownIterableError):
        loops.check_batches(source, is_loader)


BODY = """
def f(loader, model):
    total = best = 0
    def inner(): return seen
    for i, (x, y) in enumerate(loader):
        with torch.no_grad():
            z = x + 1
        out = model(x, z)
        seen = out
        total = total + out
        best += 1
        if best: early = out
        if best > 3: break
        late = out
"""


def test_variables_that_are_assigned_before_they_are_read_need_not_be_saved() -> None:
    tree = ast.parse(BODY)
    loop = next(node for node in ast.walk(tree) if isinstance(node, ast.For))
    variables: dict[str, Any] = {}
    exec(compile(tree, "train.py", "exec"), variables)
    assert dead_names(loop, variables["f"].__code__) == {"i", "x", "y", "z", "out"}


def test_a_loop_that_skips_what_was_done_is_recognised() -> None:
    def condition(text: str) -> str | None:
        (loop,) = ast.parse(text).body
        assert isinstance(loop, ast.For)
        return skips_by_number(loop)

    assert condition("for epoch in range(9):\n  if epoch < start: continue\n  train()") == "epoch < start"
    assert condition("for epoch in range(9):\n  if epoch < start: print()\n  train()") is None
