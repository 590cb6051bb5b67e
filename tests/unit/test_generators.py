"""Loaders whose order or augmentation uses separate random generators: they resume exactly, or are refused."""

from __future__ import annotations

import functools
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, Dataset, IterableDataset, Subset  # noqa: E402

from cloudgpu.runtime import CheckpointError  # noqa: E402
from cloudgpu.runtime.checkpoint.data import random_state  # noqa: E402
from cloudgpu.runtime.checkpoint.data.generators import Generators  # noqa: E402
from cloudgpu.tests.standins.checkpoints import restarted  # noqa: E402

SIZE, EPOCHS, BATCHES = 20, 3, 5


@pytest.fixture(scope="module", autouse=True)
def _one_writer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    path = tmp_path_factory.mktemp("writer") / "socket"
    writer = subprocess.Popen([sys.executable, "-m", "cloudgpu.runtime.checkpoint.writer", "--socket", str(path)])
    while not path.exists() and writer.poll() is None:
        time.sleep(0.01)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLOUDGPU_WRITER", str(path))
        yield
    writer.terminate()
    assert writer.wait(180) == 0


class Shuffled:
    """A sampler with its own generator of any kind."""

    def __init__(self, generator: Any) -> None:
        self.rng = generator

    def __len__(self) -> int:
        return SIZE

    def __iter__(self) -> Iterator[int]:
        return iter(_permutation(self.rng))


def _permutation(generator: Any) -> list[int]:
    if isinstance(generator, random.Random):
        return generator.sample(range(SIZE), SIZE)
    if isinstance(generator, torch.Generator):
        return torch.randperm(SIZE, generator=generator).tolist()  # type: ignore[no-any-return]
    return generator.permutation(SIZE).tolist()  # type: ignore[no-any-return]


class OneByOne(Shuffled):
    """A sampler that draws with replacement, each index on demand."""

    def __iter__(self) -> Iterator[int]:
        return (int(self.rng.integers(SIZE)) for _ in range(SIZE))


class Wrapped(Shuffled):
    """A sampler that holds another sampler in a list."""

    def __init__(self, *inner: Any) -> None:
        self.inner = list(inner)

    def __iter__(self) -> Iterator[int]:
        return iter(self.inner[-1])


class Buckets:
    """A batch sampler that shuffles its batches."""

    __slots__ = ("rng",)

    def __init__(self) -> None:
        self.rng = np.random.default_rng(4)

    def __len__(self) -> int:
        return BATCHES

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.rng.permutation(SIZE).reshape(BATCHES, -1).tolist())


class Lazy(Shuffled):
    """A sampler that creates its generator at the first use."""

    def __init__(self) -> None:
        super().__init__(None)

    def __iter__(self) -> Iterator[int]:
        self.rng = self.rng or np.random.default_rng(6)
        return super().__iter__()


class EachEpoch(Shuffled):
    """A sampler that creates its generator in each epoch, as many samplers do."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        self.rng = np.random.default_rng(self.epoch)
        return iter([int(self.rng.integers(SIZE)) for _ in range(SIZE)])


OF_THE_MODULE = np.random.default_rng(8)


class Global(Shuffled):
    """A sampler that draws from a generator in a global variable."""

    def __init__(self) -> None:
        pass

    def __iter__(self) -> Iterator[int]:
        return iter(_permutation(OF_THE_MODULE))


class Noisy(Dataset):
    """A dataset that augments at random with its own generator."""

    def __init__(self, transform: Callable[[], float]) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> float:
        return index + self.transform()


class Stream(IterableDataset):
    def __init__(self) -> None:
        self.rng = np.random.RandomState(9)

    def __iter__(self) -> Iterator[int]:
        yield from self.rng.permutation(SIZE).tolist()


def by(sampler: Any, data: Any = range(SIZE), **options: Any) -> DataLoader[Any]:
    return DataLoader(data, sampler=sampler, batch_size=4, **options)


def with_closure() -> DataLoader[Any]:
    generator = random.Random(1)
    return by(None, collate_fn=lambda batch: [one + generator.random() for one in batch])


def fresh_global() -> DataLoader[Any]:
    OF_THE_MODULE.bit_generator.state = np.random.default_rng(8).bit_generator.state  # simulates another process
    return by(Global())


def rng(seed: int = 2) -> Any:
    return np.random.default_rng(seed)


LOADERS: dict[str, Callable[[], Any]] = {
    "NumPy": lambda: by(Shuffled(rng())),
    "NumPy, other bits": lambda: by(Shuffled(np.random.Generator(np.random.Philox(3)))),
    "RandomState": lambda: by(Shuffled(np.random.RandomState(3))),
    "random.Random": lambda: by(Shuffled(random.Random(3))),
    "torch": lambda: by(Shuffled(torch.Generator().manual_seed(3))),
    "workers": lambda: by(Shuffled(rng()), num_workers=1),
    "one by one": lambda: by(OneByOne(rng())),
    "wrapped": lambda: by(Wrapped(range(SIZE), Shuffled(rng()))),
    "batch sampler": lambda: DataLoader(range(SIZE), batch_sampler=Buckets()),
    "sampler of a batch sampler": lambda: DataLoader(
        range(SIZE), batch_sampler=BatchSampler(Shuffled(rng()), 4, drop_last=False)
    ),
    "no numbers": lambda: by(Seeded(rng()), Parts()),
    "no batches": lambda: DataLoader(Parts(), sampler=Seeded(rng()), batch_size=None),
    "lazy": lambda: by(Lazy()),
    "each epoch": lambda: by(EachEpoch()),
    "global": fresh_global,
    "dataset": lambda: by(None, Noisy(rng().random), shuffle=True),
    "dataset in others": lambda: by(
        None,
        ConcatDataset([Subset(Noisy(functools.partial(rng().normal, 0)), range(7)), Noisy(random.Random(1).random)]),
    ),
    "collator": with_closure,
    "iterable": lambda: by(None, Stream()),
}


def train(folder: Path, loader: Any, stop: int | None = None, **objects: Any) -> list[Any]:
    """Train as a fresh process would, interrupted after `stop` steps and a save; return the batches."""
    torch.manual_seed(1)
    ckpt = restarted(loader=loader, folder=folder, every=1000, **objects)
    seen = ckpt.state.setdefault("seen", [])
    for batch in ckpt.batches(epochs=EPOCHS):
        if ckpt.step == stop:
            ckpt.wait()
            break
        seen.append(batch.tolist() if hasattr(batch, "tolist") else batch)
        if ckpt.step + 1 == stop:
            ckpt.save()
    return list(seen)


@pytest.mark.parametrize("kind", LOADERS)
def test_own_generators_resume_exactly(kind: str, tmp_path: Path) -> None:
    expected = train(tmp_path / "undisturbed", LOADERS[kind]())
    assert expected[:BATCHES] != expected[BATCHES : 2 * BATCHES]
    # Stops within the first epoch are refused for a generator created in it: tested below.
    for stop in (BATCHES, BATCHES + 2) if kind == "lazy" else (2, BATCHES, BATCHES + 2):
        train(tmp_path / f"{stop}", LOADERS[kind](), stop)
        assert train(tmp_path / f"{stop}", LOADERS[kind]()) == expected, f"broken off after {stop} steps"


class Stateful(Shuffled):
    """A sampler that saves its epoch in its state_dict."""

    def __init__(self) -> None:
        super().__init__(rng())
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        order = super().__iter__()
        return (int((index + self.epoch) % SIZE) for index in order)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.rng.bit_generator.state = state["epoch"], state["rng"]


@pytest.mark.parametrize("stop", [2, BATCHES, BATCHES + 2])
def test_a_sampler_that_is_an_object_of_the_checkpointer_too(stop: int, tmp_path: Path) -> None:
    def run(name: str, stop: int | None = None) -> list[Any]:
        sampler = Stateful()
        return train(tmp_path / name, by(sampler), stop, sampler=sampler)

    expected = run("undisturbed")
    run("interrupted", stop)
    assert run("interrupted") == expected


class Unseeded(Shuffled):
    """A sampler whose order differs each time."""

    def __init__(self) -> None:
        pass

    def __iter__(self) -> Iterator[int]:
        return iter(np.random.default_rng().permutation(SIZE).tolist())


class Labelled(Unseeded):
    """A sampler whose indices are not numbers."""

    def __iter__(self) -> Iterator[Any]:
        return ((f"part {index % 3}", index) for index in super().__iter__())


class Seeded(Shuffled):
    """A sampler whose indices are of several types."""

    def __iter__(self) -> Iterator[Any]:
        return ((f"part {index % 3}", index) if index % 2 else [0.5, index] for index in super().__iter__())


class Parts(Dataset):
    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: Any) -> int:
        return int(index[1])


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("again", ["skip", "replay", "lazy", "labels", "batch size"])
def test_another_order_is_refused(again: str, workers: int, tmp_path: Path) -> None:
    def loader(batch: int = 4) -> DataLoader[Any]:
        sampler = {"lazy": Lazy, "labels": Labelled}.get(again, Unseeded)()
        data = Parts() if again == "labels" else range(SIZE)
        return DataLoader(data, sampler=sampler, batch_size=batch, num_workers=workers)

    train(tmp_path, loader(), 2)
    with pytest.raises(CheckpointError, match=r"same order again: .* after 8 samples of epoch 0"):
        train(tmp_path, loader(2 if again == "batch size" else 4), **({"replay": True} if again == "replay" else {}))


def test_a_generator_that_is_gone_is_refused(tmp_path: Path) -> None:
    train(tmp_path, by(Shuffled(rng())), BATCHES)
    with pytest.raises(CheckpointError, match=r"sampler\.rng was a numpy\.random\.Generator .* now it is a random\.R"):
        train(tmp_path, by(Shuffled(random.Random(2))))
    with pytest.raises(CheckpointError, match=r"sampler\.rng \(numpy\.random\.Generator\) was there"):
        train(tmp_path, by(None, shuffle=True))


def test_states_of_the_version_before(caplog: pytest.LogCaptureFixture) -> None:
    """The previous version saved only torch's generators, as a list."""
    loader = by(Shuffled(rng()), generator=torch.Generator().manual_seed(1))
    state = random_state.capture(Generators(loader))
    state["generators"] = [loader.generator.get_state()]
    drawn = torch.rand(3, generator=loader.generator)
    random_state.restore(state, Generators(loader))
    assert torch.equal(torch.rand(3, generator=loader.generator), drawn)
    assert "sampler.rng" in caplog.text
    with pytest.raises(CheckpointError, match=r"there were 1 torch\.Generator objects"):
        random_state.restore(state, Generators(by(None)))


def test_the_search_ends() -> None:
    """The search handles cycles, skips large objects and calls none."""

    class Odd:
        def __init__(self) -> None:
            self.self = self
            self.large: list[Any] = [[] for _ in range(10**5)]
            self.behind = {"deep": ({"rng": np.random.default_rng(1)},)}

        def __getattr__(self, name: str) -> Any:
            raise AssertionError(name)

        @property
        def evil(self) -> Any:
            raise AssertionError("called")

    assert list(Generators(by(None, Odd())).capture()) == ["dataset.behind['deep'][0]['rng']"]
