"""The place in a loader that a framework iterates, ahead of the training."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from cloudgpu.runtime.integrations.loader_place import LoaderPlace


def test_what_is_kept_of_batches_read_ahead_is_let_go_when_they_are_done() -> None:
    """Also where a step takes several of them: epochs may be long, and never end."""
    place = LoaderPlace()
    for number, _ in enumerate(place.wrap(list(range(400))), 1):
        place.position.batch = number - number % 8
        assert len(place.state_dict()["ahead"]) <= 9
        assert len(place._ahead) <= 9
