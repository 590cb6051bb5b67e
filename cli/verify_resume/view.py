"""Show the verdict of a verification."""

from __future__ import annotations

from typing import Any

import click

from ..shared.output import Tone, clean, echo_json, style
from .runs import Outcome, Verdict

_TONES: dict[Outcome, Tone] = {
    "agree": "good",
    "not-all-saved": "bad",
    "differ": "bad",
    "not-deterministic": "warn",
    "nothing-saved": "warn",
}
_SHOWN = 4
_CAUSES = (
    ("generator ", "draws random numbers and is not saved: keep its state in ckpt.state, or draw from a global one"),
    ("scheduler ", "is not given to the Checkpointer: pass scheduler="),
    ("optimizer ", "is not given to the Checkpointer: pass it by name"),
    ("scaler ", "is not given to the Checkpointer: pass scaler="),
    ("model ", "is not given to the Checkpointer: pass it by name, e.g. ema="),
    ("variable ", "is not saved: keep it in ckpt.state if the training or what is delivered depends on it"),
)
"""Advice by kind of unsaved state; likeliest causes first."""
_NONE_FOUND = (
    "none was found in what the program holds: look at random augmentation inside of DataLoader workers (SeededDataset "
    "makes it repeatable), and at threads of the program's own"
)
_FILE = (
    "is written from what is not saved, or has rows of steps that were done twice: save what it is made of, and write "
    "it whole at the end or by ckpt.log()"
)
_SOURCES = (
    ("random/python", "Python's random"),
    ("random/numpy", "NumPy's global generator"),
    ("random/torch", "torch's generator of the CPU"),
    ("random/cuda", "torch's generators on CUDA"),
    ("random/generators", "the loader's own generator"),
    ("position", "the order of the data"),
)


def show(verdict: Verdict, *, as_json: bool) -> None:
    causes = likely_causes(verdict)
    if as_json:
        echo_json(
            {
                "outcome": verdict.outcome,
                "text": verdict.text,
                "ended_at": verdict.ended_at,
                "causes": causes,
                "delivered": _delivered(verdict.comparison or {}),
                "comparison": verdict.comparison,
            }
        )
        return
    click.echo(f"{style(verdict.outcome, _TONES.get(verdict.outcome, 'bad'))}: {clean(verdict.text)}")
    if verdict.ended_at:
        click.echo(f"  ended and resumed at step {', '.join(map(str, verdict.ended_at))}")
    for line in _differences(verdict.comparison or {}):
        click.echo(f"  {clean(line)}")
    for cause in causes:
        click.echo(f"  likely cause: {clean(cause)}")
    if verdict.tail:
        click.echo(clean(verdict.tail), err=True)


def likely_causes(verdict: Verdict) -> list[str]:
    """Return the likely causes, likeliest first; [] if the runs agree."""
    comparison = verdict.comparison
    if comparison is None or verdict.outcome not in ("differ", "not-all-saved", "not-deterministic"):
        return []
    keys: list[str] = comparison["first_keys"] or [one["key"] for one in comparison["final"]]
    if verdict.outcome == "not-deterministic":
        return _nondeterminism_causes(comparison, keys)
    # If the training itself diverged, differences at its end may be consequences.
    unsaved = (verdict.outcome == "not-all-saved" and comparison["held"]) or comparison["suspects"]
    found = [f"{name} {says}" for kind, says in _CAUSES for name in unsaved if name.startswith(kind)]
    drawn = [name for prefix, name in _SOURCES if any(key.startswith(prefix) for key in keys)]
    if drawn:
        found.append(f"{' and '.join(drawn)} went another way: what draws, or how often, differs after resuming")
    if not found and comparison["files"]:
        found = [f"file {one['name']} {_FILE}" for one in comparison["files"]]
    return found[:_SHOWN] or [_NONE_FOUND]


def _delivered(comparison: dict[str, object]) -> dict[str, Any]:
    """Return the differing and left-out files and variables."""
    names = ("files", "held", "left_out")
    return {name: comparison[name] for name in names} if comparison else {}


def _nondeterminism_causes(comparison: dict[str, Any], keys: list[str]) -> list[str]:
    drawn = [name for prefix, name in _SOURCES if any(key.startswith(prefix) for key in keys)]
    suspects = [name for name in comparison["suspects"] if name.startswith("generator ")]
    unseeded = [name for prefix, name in _SOURCES if any(key.startswith(prefix) for key in comparison["unseeded"])]
    seeds = list(dict.fromkeys(unseeded + drawn + suspects))
    if comparison["first_step"] == 0:
        return [f"not seeded, or by chance: {', '.join(seeds)}"] if seeds else ["the program begins from other values"]
    return [
        *(f"{name} is not seeded" for name in unseeded + suspects),
        *(f"{name} goes another way each time" for name in drawn),
        "kernels that are not deterministic (torch.use_deterministic_algorithms), threads, the time, or set order",
    ]


def _differences(comparison: dict[str, Any]) -> list[str]:
    lines = []
    if comparison.get("first_step") is not None:
        keys = comparison["first_keys"]
        lines.append(f"differs first, after {comparison['first_step']} steps: {', '.join(keys[:_SHOWN])}")
    for one in comparison.get("final", [])[:_SHOWN]:
        size = f": {one['elements']} of {one['of']} elements" if "of" in one else ""
        most = f", by up to {one['max_difference']:.3g}" if "max_difference" in one else ""
        lines.append(f"differs at the end: {one['key']}{size}{most}")
    lines += [f"metrics differ: {line}" for line in comparison.get("metrics", [])[:3]]
    lines += [f"differs at the end: file {one['name']}: {one['says']}" for one in comparison.get("files", [])[:_SHOWN]]
    lines += [f"differs at the end: {name}" for name in comparison.get("held", [])[:_SHOWN]]
    if comparison.get("left_out"):
        names = ", ".join(comparison["left_out"][:_SHOWN])
        lines.append(f"left out, for it differs between two undisturbed runs, wholly or in part: {names}")
    return lines
