"""Random augmentation that does not depend on who does it.

    loader = DataLoader(SeededDataset(dataset), batch_size=32, shuffle=True, num_workers=8)

Without it, what a dataset draws at random in __getitem__ depends on which worker comes to the sample and on what that
worker drew before: after a resume, or with another number of workers, the same sample is augmented otherwise.
"""

from __future__ import annotations

import contextlib
import hashlib
import operator
import random
import sys
from collections.abc import Iterator
from typing import Any

from ..errors import CheckpointError


class SeededDataset:
    """A map-style dataset whose samples depend on (seed, epoch, index) alone.

    Python's, NumPy's and torch's generators are seeded anew round each __getitem__ of the dataset, and put back after
    it. Opt-in, because it costs about 0.1 ms per sample.

    seed  another one, another augmentation; it must be the same when training is resumed, and on every rank
    """

    def __init__(self, dataset: Any, seed: int = 0) -> None:  # anything with __getitem__ and __len__
        import torch

        if isinstance(dataset, torch.utils.data.IterableDataset) or not hasattr(dataset, "__getitem__"):
            raise CheckpointError("SeededDataset needs a dataset with __getitem__: an iterable one has no indices")
        self.dataset = dataset
        self.seed = seed
        # Workers that outlive an epoch see the next one's number only if it is in memory they share.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:  # whatever the sampler yields
        with _seeded(f"{self.seed} {self._epoch.item()} {_plain(index)!r}"):
            return self.dataset[index]

    def __getattr__(self, name: str) -> Any:
        """What else the dataset has, such as its classes; not __getitems__, which would be seeded once per batch."""
        if name == "dataset" or name.startswith("__"):  # while it is being unpickled it has none
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def set_epoch(self, epoch: int) -> None:
        """Called by the Checkpointer; in a loop of your own, before each epoch."""
        self._epoch.fill_(epoch)
        if callable(inner := getattr(self.dataset, "set_epoch", None)):
            inner(epoch)


def _plain(index: Any) -> Any:
    """Integers of NumPy and torch read like Python's."""
    try:
        return operator.index(index)
    except TypeError:
        return index


@contextlib.contextmanager
def _seeded(text: str) -> Iterator[None]:
    import torch

    digest = hashlib.sha256(text.encode()).digest()
    numpy: Any = sys.modules.get("numpy")
    python_state, torch_state = random.getstate(), torch.get_rng_state()
    numpy_state = numpy.random.get_state() if numpy else None
    try:
        random.seed(digest[:8])
        torch.random.default_generator.manual_seed(int.from_bytes(digest[8:16], "big") >> 1)
        if numpy:
            numpy.random.seed(int.from_bytes(digest[16:20], "big"))
        yield
    finally:
        random.setstate(python_state)
        torch.set_rng_state(torch_state)
        if numpy:
            numpy.random.set_state(numpy_state)
