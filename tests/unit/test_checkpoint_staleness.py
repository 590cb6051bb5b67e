"""Stale saves: checkpoints that verify although the saved state is not the state being trained."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from cloudgpu.runtime import Checkpointer  # noqa: E402


@pytest.fixture(autouse=True)
def _no_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("CLOUDGPU_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def train(caplog: pytest.LogCaptureFixture, trainee: Any, **objects: Any) -> list[str]:
    """Train with a save at every step; return the warnings."""
    trained = list(trainee.parameters())
    optimizer = torch.optim.AdamW(trained, lr=0.1)
    ckpt = Checkpointer(**{"model": trainee, "optimizer": optimizer, **objects}, every=1)
    for _ in ckpt.steps(5):
        optimizer.zero_grad()
        for parameter in trained:
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        ckpt.wait()
    return [record.getMessage() for record in caplog.records if "stale state" in record.message]


def model() -> Any:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


def test_live_state_is_no_cause_for_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    frozen = nn.Linear(2, 2).requires_grad_(False)
    scheduler = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(model().parameters(), 0.1), 1)
    assert train(caplog, model(), teacher=frozen, scheduler=scheduler) == []


def test_nothing_changes_while_gradients_are_accumulated(caplog: pytest.LogCaptureFixture) -> None:
    trained = model()
    optimizer = torch.optim.AdamW(trained.parameters(), lr=0.1)
    ckpt = Checkpointer(model=trained, optimizer=optimizer, every=1)
    for step in ckpt.steps(24):
        trained(torch.randn(4, 6)).sum().backward()
        if step % 8 == 7:
            optimizer.step()
            optimizer.zero_grad()
        ckpt.wait()
    assert "stale state" not in caplog.text


class Copied:
    """A common mistake: state_dict() returns a copy made when the object was created."""

    def __init__(self, inner: Any) -> None:
        self.state = copy.deepcopy(inner.state_dict())

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def test_a_state_dict_of_long_ago(caplog: pytest.LogCaptureFixture) -> None:
    trained = model()
    warnings = train(caplog, trained, model=Copied(trained))
    assert len(warnings) == 1
    assert "not one bit of what model.state_dict() gives has changed between step 2 and step 3" in warnings[0]


def test_weights_replaced_behind_the_state_dict(caplog: pytest.LogCaptureFixture) -> None:
    """A hook or cached structure causes this: state_dict() changes, but is not the model's current state."""

    class Cached(nn.Linear):
        def state_dict(self, *args: Any, **options: Any) -> Any:
            return {name: value + 1 for name, value in super().state_dict(*args, **options).items()}

    warnings = train(caplog, Cached(4, 4))
    assert len(warnings) == 1
    assert "what model.state_dict() gives as weight is not what model holds now" in warnings[0]


def test_what_changes_in_one_place_only_changes(caplog: pytest.LogCaptureFixture) -> None:
    """Sampling misses the change; before a warning, all bytes are compared."""

    class Table:
        def __init__(self) -> None:
            self.values = torch.zeros(100_000)

        def state_dict(self) -> Any:
            self.values[17] += 1
            return {"values": self.values}

        def load_state_dict(self, state: Any) -> None:
            self.values = state["values"]

    assert train(caplog, model(), table=Table()) == []
