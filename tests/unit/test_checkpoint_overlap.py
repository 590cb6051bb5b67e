"""Copies that overlap with the next pass: they give the same bits as blocking copies, or no checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from cloudgpu.runtime.checkpoint.save.overlap import Overlap  # noqa: E402
from cloudgpu.tests.standins.checkpoints import restarted  # noqa: E402


@pytest.fixture(autouse=True)
def _no_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("CLOUDGPU_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def nothing(_model: Any) -> None:
    pass


def train(
    steps: int, folder: str, overlap: Any, *, between: Callable[[Any], None] = nothing, stop: int | None = None
) -> dict[str, Any]:
    """Train a model large enough that a copy takes longer than the forward pass; return the last state."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 700), nn.BatchNorm1d(700), nn.Dropout(0.3), nn.Linear(700, 700), nn.ReLU())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    ckpt = restarted(model=model, optimizer=optimizer, folder=folder, every=2, overlap=overlap)
    for step in ckpt.steps(steps):
        if step == stop:
            break
        between(model)
        loss = model(torch.randn(16, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        ckpt.wait()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def test_the_same_bits_as_blocking_copies() -> None:
    undisturbed = train(10, "a", False)
    train(10, "b", True, stop=7)
    again = train(10, "b", True)
    assert repr(again) == repr(undisturbed)
    for key, value in undisturbed["model"].items():
        assert torch.equal(again["model"][key], value), key
    for number, state in undisturbed["optimizer"]["state"].items():
        for key, value in state.items():
            assert torch.equal(again["optimizer"]["state"][number][key], value), key


@pytest.mark.parametrize("how", ["in place", "data"])
def test_parameters_changed_between_two_steps(how: str, caplog: pytest.LogCaptureFixture) -> None:
    """The changed save fails alone and later saves block; with "data" the copy may also finish before the change."""

    def clip(model: Any) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                (parameter if how == "in place" else parameter.data).mul_(0.5)

    undisturbed = train(10, "a", False, between=clip)
    caplog.clear()
    train(10, "b", True, between=clip, stop=7)
    result = caplog.text.count("changed outside of optimizer.step()")
    assert result == 1 or (result == 0 and how == "data")
    assert "stale state" not in caplog.text
    assert torch.equal(train(10, "b", False, between=clip)["model"]["0.weight"], undisturbed["model"]["0.weight"])


def measured(copy: float, step: float, overlapped: float) -> bool:
    """Return what "auto" decides, given the seconds of a blocking copy, a step, and a step with an overlapped copy."""
    parameter = nn.Parameter(torch.ones(4))
    overlap = Overlap({"optimizer": torch.optim.SGD([parameter], 0.1)}, "auto")
    overlap.attach(lambda: None)
    now, answer = 0.0, None
    for number in range(40):
        if number % 4 == 0:
            answer = overlap.wanted()
            if answer:
                overlap.start(lambda: None, [parameter], [parameter])
                overlap.join()
            else:
                overlap.count_blocking(copy)
        now += overlapped if number % 4 == 0 and answer else step + copy * (number % 4 == 0)
        overlap._count_step(now)
    overlap.detach()
    return bool(overlap.wanted() if answer is None else answer)


def test_auto_takes_what_costs_less() -> None:
    assert not measured(copy=0.001, step=1.0, overlapped=1.0)  # less than 1 % of a step
    assert measured(copy=0.1, step=1.0, overlapped=1.02)
    assert not measured(copy=0.1, step=1.0, overlapped=1.5)
