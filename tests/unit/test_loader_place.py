"""The place in a loader that a framework iterates, ahead of the training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from cloudgpu.runtime.checkpoint.errors import CheckpointError  # noqa: E402
from cloudgpu.runtime.integrations.loader_place import LoaderPosition  # noqa: E402


def test_what_is_kept_of_batches_read_ahead_is_let_go_when_they_are_done() -> None:
    """Also where a step takes several of them: epochs may be long, and never end."""
    place = LoaderPosition()
    for number, _ in enumerate(place.wrap(list(range(400))), 1):
        place.position.batch = number - number % 8
        assert len(place.state_dict()["ahead"]) <= 9
        assert len(place._ahead) <= 9


class Shuffled:
    """A sampler with a generator of its own."""

    def __init__(self, seed: int | None) -> None:
        self.rng = np.random.default_rng(seed) if seed is not None else None

    def __len__(self) -> int:
        return 20

    def __iter__(self) -> Iterator[int]:
        return iter((self.rng or np.random.default_rng()).permutation(20).tolist())


def read(place: LoaderPosition, seed: int | None, batches: int) -> list[list[int]]:
    """The batches that a framework gets which reads one ahead; the last one is not done when this is saved."""
    loader: Any = place.wrap(torch.utils.data.DataLoader(range(20), sampler=Shuffled(seed), batch_size=4))
    got: list[list[int]] = []
    while True:
        for batch in loader:
            got.append(batch.tolist())
            if len(got) == batches:
                return got
            place.position.batch += 1
        place.next_epoch()


def test_a_samplers_own_generator_is_restored() -> None:
    expected = read(LoaderPosition(), 1, 15)
    for stop in (3, 6, 9):
        place, other = LoaderPosition(), LoaderPosition()
        read(place, 1, stop)
        other.load_state_dict(place.state_dict())
        assert read(other, 1, 15 - stop + 1) == expected[stop - 1 :]


def test_another_order_is_refused() -> None:
    place, other = LoaderPosition(), LoaderPosition()
    read(place, None, 3)
    other.load_state_dict(place.state_dict())
    with pytest.raises(CheckpointError, match="same order again"):
        read(other, None, 3)
