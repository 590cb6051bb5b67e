"""SeededDataset: random augmentation that does not depend on workers.

Without it, what a dataset draws at random in __getitem__ depends on which worker reads the sample and on what that
worker drew before. After a resume, or with another number of workers, the same sample is augmented differently.
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
    """Wrapper of a map-style dataset whose samples depend only on (seed, epoch, index).

        loader = DataLoader(SeededDataset(dataset), batch_size=32, shuffle=True, num_workers=8)

    dataset  any object with __getitem__ and __len__; its other attributes can be read through the wrapper
    seed     selects another augmentation; must be the same on every rank, and after a resume

    Python's, NumPy's and torch's generators are seeded before each __getitem__ of the dataset and restored after it.
    This takes about 0.1 ms per sample. The Checkpointer calls set_epoch(); without it, call it before each epoch.
    Raises CheckpointError for an iterable dataset.
    """

    def __init__(self, dataset: Any, seed: int = 0) -> None:  # anything with __getitem__ and __len__
        import torch

        if isinstance(dataset, torch.utils.data.IterableDataset) or not hasattr(dataset, "__getitem__"):
            raise CheckpointError("SeededDataset needs a dataset with __getitem__: an iterable one has no indices")
        self.dataset = dataset
        self.seed = seed
        # In shared memory, so that persistent workers see the number of the next epoch.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:  # whatever the sampler yields
        with _seeded(f"{self.seed} {self._epoch.item()} {_plain(index)!r}"):
            return self.dataset[index]

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the dataset; not __getitems__, which would be seeded only once per batch."""
        if name == "dataset" or name.startswith("__"):  # while it is unpickled, it has no dataset yet
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch's number, from 0; also for the wrapped dataset if it has set_epoch()."""
        self._epoch.fill_(epoch)
        if callable(inner := getattr(self.dataset, "set_epoch", None)):
            inner(epoch)


def _plain(index: Any) -> Any:
    """Return integers of NumPy and torch as int, so that they give the same seed; other values are unchanged."""
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
