"""Exact resume: training that was interrupted and resumed ends with the same bits as uninterrupted training."""

from __future__ import annotations

import copy
import hashlib
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

from torch import nn  # noqa: E402
from torch.utils.data import (  # noqa: E402
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler  # noqa: E402

from cloudgpu.runtime import CheckpointError  # noqa: E402
from cloudgpu.tests.standins.checkpoints import restarted  # noqa: E402

torch.set_num_threads(1)  # for tensors this small, a second thread makes these tests three times slower
SIZE, EPOCHS = 26, 3


@pytest.fixture(scope="module", autouse=True)
def _one_writer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Start one shared writer, as a node of a job does, so that a hundred trainings need not start one each."""
    path = tmp_path_factory.mktemp("writer") / "socket"
    writer = subprocess.Popen([sys.executable, "-m", "cloudgpu.runtime.checkpoint.writer", "--socket", str(path)])
    while not path.exists() and writer.poll() is None:
        time.sleep(0.01)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLOUDGPU_WRITER", str(path))
        yield
    writer.terminate()
    assert writer.wait(180) == 0


def scans() -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    return TensorDataset(torch.randn(SIZE, 6, generator=generator), torch.arange(SIZE) % 3)


class Augmented(Dataset):
    """A dataset that draws from all three global generators, as augmentation does."""

    def __init__(self) -> None:
        self.base = scans()

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        x, y = self.base[index]
        return x * random.uniform(0.9, 1.1) + float(np.random.normal(0, 0.1)) + torch.randn(6) * 0.1, y


class Stream(IterableDataset):
    """An iterable dataset without a length; each worker's seed shuffles it differently in each epoch."""

    def __iter__(self) -> Iterator[Any]:
        base = scans()
        worker = torch.utils.data.get_worker_info()
        count, first = (worker.num_workers, worker.id) if worker else (1, 0)
        order = torch.randperm(SIZE).tolist() if worker else list(range(SIZE))
        yield from (base[i] for i in order[first::count])


LOADERS: dict[str, Callable[[], Any]] = {
    "in order": lambda: DataLoader(scans(), batch_size=4),
    "shuffled": lambda: DataLoader(scans(), batch_size=4, shuffle=True),
    "last dropped": lambda: DataLoader(scans(), batch_size=4, shuffle=True, drop_last=True),
    "no batching": lambda: DataLoader(scans(), batch_size=None, shuffle=True),
    "own generator": lambda: DataLoader(
        scans(), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(3)
    ),
    "sampler's generator": lambda: DataLoader(
        scans(),
        batch_size=4,
        sampler=RandomSampler(scans(), replacement=True, num_samples=40, generator=torch.Generator().manual_seed(3)),
    ),
    "weighted": lambda: DataLoader(scans(), batch_size=4, sampler=WeightedRandomSampler([1.0] * 13 + [3.0] * 13, 26)),
    "distributed": lambda: DataLoader(
        scans(), batch_size=5, sampler=DistributedSampler(scans(), num_replicas=2, rank=1, seed=5)
    ),
    "augmented": lambda: DataLoader(Augmented(), batch_size=4, shuffle=True),
    "two workers": lambda: DataLoader(Augmented(), batch_size=4, shuffle=True, num_workers=2),
    "stream": lambda: DataLoader(Stream(), batch_size=4),
    "stream, two workers": lambda: DataLoader(Stream(), batch_size=5, num_workers=2),
    "list": lambda: [(torch.full((4, 6), float(i)), torch.tensor([0, 1, 2, 0])) for i in range(5)],
}
SLOW = {"two workers", "stream, two workers"}


class Average:
    """An exponential moving average of weights: an example of an object that has only a state_dict."""

    def __init__(self, model: nn.Module) -> None:
        self.weights = copy.deepcopy(model.state_dict())

    def update(self, model: nn.Module) -> None:
        for name, value in model.state_dict().items():
            self.weights[name] = 0.9 * self.weights[name] + 0.1 * value

    def state_dict(self) -> dict[str, Any]:
        return dict(self.weights)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights = state


def train(
    folder: Path, loader: Any, *, stop_after: int | None = None, replay: bool = False
) -> tuple[str, list[str]] | None:
    """Train as a fresh process would, interrupted after `stop_after` steps; return the digest of all state, and the
    losses.

    The last checkpoint is saved at the last even step before `stop_after`. Its write is awaited, because it takes
    longer than these steps.
    """
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, amsgrad=True)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 3, 9])
    average = Average(model)
    ckpt = restarted(
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        ema=average,
        loader=loader,
        folder=folder,
        every=1000,
        replay=replay,
    )
    ckpt.state.setdefault("losses", [])
    begun = ckpt.step
    for done, (inputs, labels) in enumerate(ckpt.batches(epochs=EPOCHS)):
        if done == stop_after:
            ckpt.wait()
            return None
        if stop_after is not None and 0 < (ckpt.step + 1) == (begun + stop_after) // 2 * 2:
            ckpt.save()
        # Batch normalisation needs at least two samples.
        x, y = (inputs, labels) if inputs.dim() == 2 else (inputs.repeat(2, 1), labels.repeat(2))
        loss = nn.functional.cross_entropy(model(x + torch.randn_like(x) * random.random()), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        average.update(model)
        ckpt.state["losses"].append(loss.item().hex())
    digest = hashlib.sha256()
    for state in (model.state_dict(), average.state_dict()):
        for value in state.values():
            digest.update(value.numpy().tobytes())
    for moments in optimizer.state_dict()["state"].values():
        for value in moments.values():
            digest.update(value.numpy().tobytes())
    digest.update(repr((scheduler.state_dict(), random.random(), np.random.rand(), torch.rand(1).item())).encode())
    return digest.hexdigest(), ckpt.state["losses"]


@pytest.mark.parametrize("kind", LOADERS)
def test_resumed_training_is_bit_identical(kind: str, tmp_path: Path) -> None:
    undisturbed = train(tmp_path / "a", LOADERS[kind]())
    assert undisturbed is not None
    total = len(undisturbed[1])
    # Stop right after a save, between two saves, at the end of an epoch, in the next epoch, and before the first save.
    for stop in {7} if kind in SLOW else {1, 4, 5, total // EPOCHS, total // EPOCHS + 1, total - 1}:
        folder = tmp_path / f"b{stop}"
        assert train(folder, LOADERS[kind](), stop_after=stop) is None
        again = train(folder, LOADERS[kind](), replay=kind == "two workers")  # its augmentation runs in the workers
        assert again == undisturbed, f"broken off after {stop} steps"


def test_resumed_again_and_again(tmp_path: Path) -> None:
    undisturbed = train(tmp_path / "a", LOADERS["augmented"]())
    result, runs = None, 0
    while result is None:
        result, runs = train(tmp_path / "b", LOADERS["augmented"](), stop_after=3), runs + 1
        assert runs < 30
    assert result == undisturbed
    assert runs > 5


def test_without_numpy_in_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cloudgpu.runtime.checkpoint.data import random_state

    monkeypatch.delitem(__import__("sys").modules, "numpy")
    state = random_state.capture()
    assert "numpy" not in state
    random_state.restore(state)


def test_changed_data_is_refused(tmp_path: Path) -> None:
    train(tmp_path, LOADERS["shuffled"](), stop_after=4)
    with pytest.raises(CheckpointError, match=r"batch 4 of 7 .* the loader now has 3"):
        train(tmp_path, DataLoader(TensorDataset(*scans()[:12]), batch_size=4, shuffle=True))


def test_a_generator_more_is_refused(tmp_path: Path) -> None:
    train(tmp_path, LOADERS["shuffled"](), stop_after=4)
    with pytest.raises(CheckpointError, match="does not draw the same order again"):
        train(tmp_path, LOADERS["own generator"]())


def test_shrunken_stream_is_refused(tmp_path: Path) -> None:
    """For a loader without a length, the missing samples are noticed only while skipping."""

    class Short(Stream):
        def __iter__(self) -> Iterator[Any]:
            return iter(list(super().__iter__())[:8])

    train(tmp_path, LOADERS["stream"](), stop_after=6)
    with pytest.raises(CheckpointError, match="ended after 2"):
        train(tmp_path, DataLoader(Short(), batch_size=4))


def test_persistent_workers(tmp_path: Path) -> None:
    def loader() -> Any:
        return DataLoader(scans(), batch_size=4, shuffle=True, num_workers=1, persistent_workers=True)

    undisturbed = train(tmp_path / "a", loader())
    train(tmp_path / "b", loader(), stop_after=9)
    assert train(tmp_path / "b", loader()) == undisturbed  # the workers use no randomness, so the resume is exact


def test_skipping_by_index_reads_no_data(tmp_path: Path) -> None:
    class Counted(Augmented):
        read = 0

        def __getitem__(self, index: int) -> Any:
            Counted.read += 1
            return super().__getitem__(index)

    train(tmp_path, DataLoader(Counted(), batch_size=4, shuffle=True), stop_after=6)
    Counted.read = 0
    train(tmp_path, DataLoader(Counted(), batch_size=4, shuffle=True), stop_after=0)
    assert Counted.read == 26 % 4  # only the batch that was yielded, the seventh of the epoch
