"""Compare two runs of a verification: `python -m cloudgpu.runtime compare A B [C]`, which prints JSON on stdout.

It compares the final checkpoints (each tensor and value), the metrics, the files that the program wrote, and its
variables at the end. The traces show the step at which the runs diverge, the saved state that differs first, and the
unsaved state that had differed by then, which is the likely cause. C is a second undisturbed run: files and variables
that differ between A and C are ignored.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...protocol.jobdir import JobDir, JobDirError, local_url
from ...protocol.metrics import Row, read_metrics
from ..checkpoint.errors import CheckpointError, UnusableError
from ..checkpoint.format.placement import Placements
from ..checkpoint.format.tree import flatten
from ..checkpoint.restore.loading import Files, load
from ..checkpoint.settings import find_store
from .files import compare_files
from .trace import PROGRAM_STATE, Moment, digests_of, read_trace

_SHOWN = 20
"""Maximum number of keys in each list of the result."""
_USAGE = 2
_VARIABLE = f"{PROGRAM_STATE}variable "
_OF_RUN = "objects/program/"
"""Prefix of the state that `run` saves for a program."""
_RESULTS_OF_RUN = (f"{_OF_RUN}objects/", f"{_OF_RUN}gradients/")
"""Prefixes, below _OF_RUN, of results of the training. Variables are compared by the traces instead."""
_STATE = ("objects/", "state/")
"""Prefixes of results of the training in a snapshot; other keys describe the position and the random state."""


@dataclass(slots=True)
class Comparison:
    """Differences between an undisturbed run A and another run B."""

    agree: bool = False
    """True if final checkpoints and metrics are bitwise equal."""
    problem: str | None = None
    """Reason why the runs cannot be compared; None: they were compared."""
    steps: int = 0
    """Number of steps of run A."""
    resumed_at: int | None = None
    """First step in the trace of B's last process."""
    first_step: int | None = None
    """First step boundary at which the saved states differ."""
    first_keys: list[str] = field(default_factory=list)
    """Keys of the saved state that differ at `first_step`."""
    suspects: list[str] = field(default_factory=list)
    """Names of unsaved state that differed at `first_step` or before."""
    final: list[dict[str, Any]] = field(default_factory=list)
    """Differences in the final checkpoint: key, and for tensors the maximum difference."""
    compared: int = 0
    """Number of tensors and values compared in the final checkpoint."""
    metrics: list[str] = field(default_factory=list)
    """Differences in the metrics."""
    files: list[dict[str, str]] = field(default_factory=list)
    """Files that differ: name, and the difference."""
    files_compared: int = 0
    held: list[str] = field(default_factory=list)
    """Names of variables, generators, models … that are not in the checkpoints and differ at the end."""
    left_out: list[str] = field(default_factory=list)
    """Names of files and variables that are ignored, entirely or in part: they differ between two undisturbed runs."""
    unseeded: list[str] = field(default_factory=list)
    """Random generators, such as "random/python", whose states differed at the start. Their differences are ignored,
    because a program need not seed a generator that it does not use.
    """


def compare(a: Path, b: Path, other: Path | None = None) -> Comparison:
    """Compare an undisturbed run A with another run B. `other`: a second undisturbed run."""
    result = Comparison()
    try:
        ours, theirs = _final(a), _final(b)
    except (CheckpointError, JobDirError, UnusableError) as error:
        result.problem = str(error)
        return result
    if ours is None or theirs is None:
        result.problem = f"{'the undisturbed' if ours is None else 'the resumed'} run has left no final checkpoint"
        return result
    traces = [list(read_trace(run / "trace.jsonl")) for run in (a, b, *([other] if other else []))]
    chance = _differ_by_chance(traces[0], traces[2]) if other else set()
    steps = [_boundaries(one) for one in traces]
    result.unseeded = _unseeded(steps[0], steps[1])
    result.final, result.compared = _differences(ours, theirs, aside=result.unseeded)
    result.metrics = _metric_differences(_rows(a), _rows(b))
    _compare_traces(result, steps[0], steps[1], chance)
    files = compare_files(a, b, other)
    result.files, result.files_compared = files.different[:_SHOWN], files.compared
    result.held = _names(sorted(_held_at_end(traces[0], traces[1]) - chance))
    result.left_out = [*(f"file {name}" for name in files.ignored), *_names(sorted(chance))][:_SHOWN]
    result.agree = not result.final and not result.metrics
    return result


# Final state


def _final(run: Path) -> dict[str, Any] | None:
    """Return the snapshot of the newest checkpoint; None if that is not the end of the training."""
    store = find_store(run / "checkpoints", 1)
    names = store.committed()
    if not names:
        return None
    commit = store.read_commit(names[0])
    return load(Files(store, names[0], commit), 0, 1, Placements({}), None) if commit.finished else None


def _differences(
    ours: Mapping[str, object], theirs: Mapping[str, object], *, aside: Sequence[str]
) -> tuple[list[dict[str, Any]], int]:
    a, b = digests_of(ours), digests_of(theirs)
    keys = [key for key in [*a, *(key for key in b if key not in a)] if _is_result(key) and _source(key) not in aside]
    different = [key for key in keys if a.get(key) != b.get(key)]
    _, leaves = flatten(dict(ours), "")
    _, others = flatten(dict(theirs), "")
    return [{"key": key, **_distance(leaves.get(key), others.get(key))} for key in different], len(keys)


def _is_result(key: str) -> bool:
    """Return whether a key belongs to the result; keys of the data position and of variables saved by `run` do not."""
    return key.startswith((*_STATE, "random/")) and not _is_way(key)


def _is_way(key: str) -> bool:
    return key.startswith(_OF_RUN) and not key.startswith(_RESULTS_OF_RUN)


def _distance(a: Any, b: Any) -> dict[str, Any]:
    if a is None or b is None or not hasattr(a, "detach") or a.shape != b.shape:
        return {}
    if not a.is_floating_point():
        return {"elements": int((a != b).sum()), "of": a.numel()}
    difference = (a.double() - b.double()).abs()
    return {"elements": int((a != b).sum()), "of": a.numel(), "max_difference": float(difference.max())}


def _rows(run: Path) -> list[Row]:
    return read_metrics(JobDir(local_url(run), make=False), "checkpoints")


def _metric_differences(a: Sequence[Row], b: Sequence[Row]) -> list[str]:
    ours, theirs = ({row.step: repr(sorted(row.values.items())) for row in rows} for rows in (a, b))
    return [
        f"step {step}: {ours.get(step, 'no row')} against {theirs.get(step, 'no row')}"
        for step in sorted(ours.keys() | theirs.keys())
        if ours.get(step) != theirs.get(step)
    ][:_SHOWN]


# Traces


def _boundaries(trace: Iterable[Moment]) -> list[Moment]:
    return [moment for moment in trace if not moment.end]


def _compare_traces(result: Comparison, a: Sequence[Moment], b: Sequence[Moment], chance: set[str]) -> None:
    by_step = {moment.step: moment for moment in a}
    result.steps = max(by_step, default=0)
    if not b:
        return
    last = b[-1].process
    result.resumed_at = b[0].step if b[0].process == last else next(one.step for one in b if one.process == last)
    changing = _changing(a)
    suspects: dict[str, None] = {}
    begun = False
    for theirs in b:
        ours = by_step.get(theirs.step)
        if ours is None:
            continue
        different = list(_different(ours.digests, theirs.digests))
        if theirs.process == last:
            # Variables are suspects only at the first boundary: a loop assigns later ones before it reads them.
            known = ours.digests.keys() & theirs.digests.keys() & changing - chance
            held = (key for key in different if key in known and key.startswith(PROGRAM_STATE))
            suspects.update(dict.fromkeys(key for key in held if not begun or not key.startswith(_VARIABLE)))
            begun = True
        # In checkpoints of `run`, "position/" is not used; the position is part of "objects/program/".
        unread = ("position/",) if any(map(_is_way, ours.digests)) else ()
        saved = [key for key in different if not key.startswith((PROGRAM_STATE, *unread)) and not _is_way(key)]
        saved = [key for key in saved if _source(key) not in result.unseeded]
        if any(not key.startswith("position/") for key in saved):  # a position that is not used may differ
            result.first_step = theirs.step
            result.first_keys = sorted(saved, key=lambda key: not key.startswith(_STATE))[:_SHOWN]
            break
    result.suspects = _names(suspects)


def _changing(a: Sequence[Moment]) -> set[str]:
    """Return the keys of program state that change during training; constants, such as the start step, are ignored."""
    first = a[0].digests if a else {}
    return {
        key
        for moment in a
        for key in moment.digests
        if key.startswith(PROGRAM_STATE) and moment.digests[key] != first.get(key)
    }


def _held_at_end(a: Sequence[Moment], b: Sequence[Moment]) -> set[str]:
    """Return the keys of program state that differ at the program's end; of local variables, at the last boundary."""
    ends = [{moment.end: moment.digests for moment in trace} for trace in (a, b)]
    changing = _changing(a)
    return {
        key
        for is_end in (False, True)
        if all(is_end in one for one in ends)
        for key in _different(*(one[is_end] for one in ends))
        if key in changing and (is_end or "()." in key)
    }


def _differ_by_chance(a: Sequence[Moment], c: Sequence[Moment]) -> set[str]:
    """Return the keys of program state that differ between two undisturbed runs at any moment."""
    others = {(moment.step, moment.end): moment.digests for moment in c}
    pairs = ((one.digests, others[one.step, one.end]) for one in a if (one.step, one.end) in others)
    return {key for ours, theirs in pairs for key in _different(ours, theirs) if key.startswith(PROGRAM_STATE)}


def _names(keys: Iterable[str]) -> list[str]:
    """Return the names of variables and objects in the keys, without duplicates: a container counts once."""
    names = (key.removeprefix(PROGRAM_STATE).partition("[")[0] for key in keys)
    return list(dict.fromkeys(names))[:_SHOWN]


def _unseeded(a: Sequence[Moment], b: Sequence[Moment]) -> list[str]:
    if not a or not b:
        return []
    different = _different(a[0].digests, b[0].digests) if a[0].step == b[0].step else ()
    return sorted({_source(key) for key in different if key.startswith("random/")})


def _source(key: str) -> str:
    """Return the name of the generator to which a key below "random/" or "position/random/" belongs."""
    parts = key.removeprefix("position/").split("/")
    return "/".join(parts[:3] if parts[1:2] in (["cuda"], ["generators"]) else parts[:2])


def _different(a: Mapping[str, str], b: Mapping[str, str]) -> Iterator[str]:
    for key in [*a, *(key for key in b if key not in a)]:
        if a.get(key) != b.get(key):
            yield key


def main(arguments: Sequence[str]) -> int:
    if len(arguments) not in (2, 3):
        print("usage: python -m cloudgpu.runtime compare A B [C]", file=sys.stderr)
        return _USAGE
    result = compare(*map(Path, arguments))
    print(json.dumps(asdict(result)))
    return 0 if result.agree else 1
