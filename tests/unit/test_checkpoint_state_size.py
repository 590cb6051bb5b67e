"""Estimate of an optimizer's state size before its first step."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cloudgpu.runtime.checkpoint.format.tree import flatten  # noqa: E402
from cloudgpu.runtime.checkpoint.save.staging import Stager  # noqa: E402
from cloudgpu.runtime.checkpoint.save.state_size import _PER_PARAMETER, state_to_come  # noqa: E402

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in _PER_PARAMETER if name != "SparseAdam"),
    ("AdamW", {"amsgrad": True}),
    ("SGD", {"momentum": 0.9}),
    ("RMSprop", {"momentum": 0.9, "centered": True}),
]


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_memory_made_beforehand_is_enough_and_little_more(name: str, options: dict[str, Any]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(50, 40), torch.nn.Linear(40, 30))
    model[1].bias.requires_grad_(False)
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1, **options)

    def size() -> int:
        return Stager().lay_out(flatten(optimizer.state_dict(), "")[1])[0].size

    before, expected = size(), state_to_come({"model": model, "optimizer": optimizer})
    model(torch.randn(2, 50)).sum().backward()
    optimizer.step()
    assert expected is not None
    assert 0 <= before + expected - size() <= 2 * 64 * 4
    assert not optimizer.state or state_to_come({"optimizer": optimizer}) == 0


def test_an_optimizer_of_another_kind_is_not_guessed() -> None:
    class Mine(torch.optim.Adam):  # type: ignore[name-defined]
        pass

    parameter = torch.nn.Parameter(torch.ones(3))
    assert state_to_come({"optimizer": Mine([parameter])}) is None
    assert state_to_come({"optimizer": torch.optim.LBFGS([parameter])}) is None
    assert state_to_come({"table": object()}) == 0
