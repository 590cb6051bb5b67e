"""The position in the data: a resumed run reads the same samples in the same order, even if workers, batch size or
ranks change."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from torch.utils.data import (  # noqa: E402
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)
from torch.utils.data.distributed import DistributedSampler  # noqa: E402

from cloudgpu.runtime import SeededDataset  # noqa: E402
from cloudgpu.runtime.checkpoint.data import random_state  # noqa: E402
from cloudgpu.runtime.checkpoint.data.data_position import DataPosition  # noqa: E402
from cloudgpu.runtime.checkpoint.errors import CheckpointError  # noqa: E402

SIZE = 50
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Numbers(Dataset):
    """A dataset whose samples are their indices."""

    def __init__(self, size: int = SIZE) -> None:
        self.size, self.read = size, 0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        self.read += 1
        return index


class Run:
    """A training loop that only records the batches."""

    def __init__(self, loader: Any, *, replay: bool = False) -> None:
        self.loader, self.position = loader, DataPosition(replay=replay)
        self.seen: list[list[list[Any]]] = []
        """Batches of each epoch."""

    def go(self, *, epochs: int = 3, stop: int | None = None) -> Run:
        """Stop after this total number of batches."""
        done = 0
        while self.position.epoch < epochs:
            source = self.position.open_epoch(self.loader)
            self.seen.append([])
            while True:
                if done == stop:
                    return self
                batch = next(source, None)
                if batch is None:
                    break
                torch.rand(1)  # dropout would draw from it, too
                self.seen[-1].append(batch.tolist() if hasattr(batch, "tolist") else batch)
                self.position.batch += 1
                done += 1
            self.position.next_epoch()
        return self

    def resumed_by(self, loader: Any, *, replay: bool = False) -> Run:
        """Restore as another process does: only the saved state is known, and the generators are other objects."""
        saved = self.position.state_dict()
        random_states = random_state.capture(random_state.generators_of(self.loader))
        torch.manual_seed(77)
        other = Run(loader, replay=replay)
        other.position.load_state_dict(saved)
        random_state.restore(random_states, random_state.generators_of(loader))
        return other


def samples(epoch: list[list[Any]]) -> list[Any]:
    return [sample for batch in epoch for sample in batch]


def shuffled(workers: int = 0, batch: int = 4, **options: Any) -> DataLoader[Any]:
    return DataLoader(Numbers(), batch_size=batch, shuffle=True, num_workers=workers, **options)


def undisturbed(loader: Any, **options: Any) -> list[list[list[Any]]]:
    torch.manual_seed(5)
    return Run(loader).go(**options).seen


def broken_off(loader: Any, stop: int, **options: Any) -> Run:
    torch.manual_seed(5)
    return Run(loader, **options).go(stop=stop)


# Workers and batches


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("after", [0, 2, 8])
def test_any_number_of_workers(before: int, after: int) -> None:
    expected = undisturbed(shuffled())
    first = broken_off(shuffled(before), stop=17)
    rest = first.resumed_by(shuffled(after)).go()
    assert first.seen[0] == expected[0]
    assert first.seen[1] + rest.seen[0] == expected[1]
    assert rest.seen[1] == expected[2]


@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("before", [0, 2])
def test_workers_that_persist(before: int, after: int) -> None:
    """Persistent workers draw no seed in later epochs, so their shuffles differ: the saved state must record this."""
    expected = undisturbed(shuffled(before, persistent_workers=bool(before)))
    first = broken_off(shuffled(before, persistent_workers=bool(before)), stop=17)
    rest = first.resumed_by(shuffled(after, persistent_workers=bool(after))).go()
    assert first.seen[1] + rest.seen[0] == expected[1]
    if before == after:
        assert rest.seen[1] == expected[2]


@pytest.mark.parametrize("stop", [1, 12, 13, 14, 25, 26])
def test_batches_of_another_size_go_on_at_the_same_sample(stop: int) -> None:
    """An epoch has 13 batches of 4, the last of 2: also stop right before and after its end."""
    expected = [samples(epoch) for epoch in undisturbed(shuffled())]
    first = broken_off(shuffled(), stop=stop)
    rest = first.resumed_by(shuffled(batch=7)).go()
    epoch = len(first.seen) - 1
    got = samples(first.seen[epoch]) + samples(rest.seen[0])
    if got == []:
        got = samples(rest.seen[1])
    assert got == expected[epoch]
    assert all(sorted(samples(one)) == list(range(SIZE)) for one in rest.seen[1:])


@pytest.mark.parametrize("workers", [0, 2])
def test_skipping_reads_nothing(workers: int) -> None:
    first = broken_off(shuffled(), stop=8)
    loader = DataLoader(Reported(), batch_size=4, shuffle=True, num_workers=workers)
    before = Reported.read.item()
    rest = first.resumed_by(loader)
    source = rest.position.open_epoch(loader)
    assert Reported.read.item() - before <= workers * 2 * 4  # the read-ahead of the workers
    assert len(list(source)) == 5
    assert Reported.read.item() - before == SIZE - 8 * 4


class Reported(Numbers):
    """A dataset that also counts the samples read in workers."""

    read: Any = torch.zeros((), dtype=torch.int64).share_memory_()

    def __init__(self) -> None:
        self.size = SIZE

    def __getitem__(self, index: int) -> int:
        self.read += 1
        return index


LOADERS: dict[str, Callable[[], Any]] = {
    "in order": lambda: DataLoader(Numbers(), batch_size=4),
    "last dropped": lambda: DataLoader(Numbers(), batch_size=4, shuffle=True, drop_last=True),
    "no batches": lambda: DataLoader(Numbers(), batch_size=None, shuffle=True),
    "own generator": lambda: shuffled(generator=torch.Generator().manual_seed(1)),
    "batch sampler": lambda: DataLoader(
        Numbers(), batch_sampler=BatchSampler(RandomSampler(range(SIZE)), 4, drop_last=False)
    ),
    "batch sampler of its own": lambda: DataLoader(Numbers(), batch_sampler=Buckets()),
    "list": lambda: [[number] for number in range(SIZE)],
    "iterable": lambda: DataLoader(Stream(), batch_size=4),
    "subclass": lambda: Doubled(Numbers(), batch_size=4, shuffle=True),
}


class Buckets:
    """A batch sampler with batches of various sizes, in an order drawn from the global generator."""

    def __len__(self) -> int:
        return 10

    def __iter__(self) -> Iterator[list[int]]:
        for bucket in torch.randperm(10).tolist():
            yield list(range(bucket * (bucket - 1) // 2, bucket * (bucket + 1) // 2)) or [49]


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(SIZE).tolist()


class Doubled(DataLoader):
    """A subclass of DataLoader with behaviour that cloudgpu does not know."""

    def __iter__(self) -> Any:
        return (2 * batch for batch in super().__iter__())


@pytest.mark.parametrize("kind", LOADERS)
def test_any_loader_goes_on_where_it_was(kind: str) -> None:
    expected = undisturbed(LOADERS[kind]())
    length = len(expected[0])
    for stop in (1, length - 1, length, length + 1, 2 * length):
        first = broken_off(LOADERS[kind](), stop=stop)
        rest = first.resumed_by(LOADERS[kind]()).go()
        assert (first.seen[-1] + rest.seen[0], *rest.seen[1:]) == tuple(expected[len(first.seen) - 1 :]), stop


def test_saved_again_before_anything_is_read() -> None:
    """A run that is interrupted during its start saves what it restored."""
    first = broken_off(shuffled(), stop=8)
    again = first.resumed_by(shuffled())
    assert again.position.state_dict() == first.position.state_dict()


def test_saved_again_and_again() -> None:
    expected = undisturbed(shuffled(), epochs=1)[0]
    run, got = broken_off(shuffled(), stop=2), []
    for batch in (3, 4, 5, 6):
        got += samples(run.seen[0])
        run = run.resumed_by(shuffled(batch=batch)).go(stop=2)
    got += samples(run.seen[0])
    rest = run.resumed_by(shuffled()).go(epochs=1)
    assert got + samples(rest.seen[0]) == samples(expected)


def test_batches_left_are_known() -> None:
    """The Checkpointer's end_of_epoch depends on it."""
    rest = broken_off(shuffled(), stop=8).resumed_by(loader := shuffled(batch=5))
    count = len(list(rest.position.open_epoch(loader)))
    assert count == 4  # 18 samples
    assert rest.position.batch + count == len(loader)


# Ranks


def ranks(world: int, batch: int, **options: Any) -> list[DataLoader[Any]]:
    return [
        DataLoader(Numbers(), batch_size=batch, sampler=DistributedSampler(range(SIZE), world, rank, seed=3), **options)
        for rank in range(world)
    ]


def test_four_ranks_then_two_then_eight() -> None:
    """The global batches of 8 samples are the same sets for every number of ranks."""

    def together(runs: list[list[list[Any]]]) -> list[list[Any]]:
        return [sorted(samples(list(step))) for step in zip(*runs, strict=True)]

    expected = together([undisturbed(one)[0] for one in ranks(1, 8)])
    got: list[list[Any]] = []
    runs = [broken_off(loader, stop=2) for loader in ranks(4, 2)]
    for world, batch in ((2, 4), (8, 1)):
        got += together([run.seen[0] for run in runs])
        runs = [runs[0].resumed_by(loader).go(stop=2) for loader in ranks(world, batch)]
    got += together([run.seen[0] for run in runs])
    assert got == expected[: len(got)]
    assert len(got) == 6


def test_what_cannot_be_divided_comes_again_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    first = [broken_off(loader, stop=3) for loader in ranks(4, 1)]  # 12 samples; 8 ranks can only have read 8 or 16
    with caplog.at_level(logging.WARNING):
        rest = [first[0].resumed_by(loader).go(epochs=1) for loader in ranks(8, 1)]
    assert "4 ranks had done 12 samples of this epoch, which 8 ranks cannot divide evenly: the last 4" in caplog.text
    seen = [sample for run in (*first, *rest) for sample in samples(run.seen[0])]
    assert set(seen) == set(range(SIZE))


def test_an_epoch_that_is_done_is_done_for_any_number_of_ranks() -> None:
    """13 batches for each of 4 ranks, with padding; 8 ranks would have 7."""
    first = [broken_off(loader, stop=13) for loader in ranks(4, 1)]
    rest = [first[0].resumed_by(loader).go(epochs=2) for loader in ranks(8, 1)]
    assert all(run.seen[0] == [] for run in rest)
    assert {sample for run in rest for sample in samples(run.seen[1])} == set(range(SIZE))


def test_losses_are_the_same_on_any_number_of_ranks() -> None:
    """Only rounding may differ: the mean over ranks adds in another order than the mean over a batch. Workers change
    nothing."""
    data = TensorDataset(torch.randn(64, 3, generator=torch.Generator().manual_seed(1)))

    def train(weight: Any, losses: list[float], loaders: list[Any], steps: int, before: Run | None = None) -> Run:
        """Train all ranks in one process: each with its own loader, with the mean of their gradients."""
        runs = [before.resumed_by(loader) if before else Run(loader) for loader in loaders]
        sources = [run.position.open_epoch(run.loader) for run in runs]
        for _ in range(steps):
            copies = [weight.detach().clone().requires_grad_() for _ in runs]
            each = [(next(source)[0] @ copy).square().mean() for source, copy in zip(sources, copies, strict=True)]
            torch.stack(each).mean().backward()
            weight -= 0.1 * torch.stack([copy.grad for copy in copies]).sum(0)
            losses.append(torch.stack(each).mean().item())
            for run in runs:
                run.position.batch += 1
        return runs[0]

    def loaders(world: int, batch: int, workers: int) -> list[Any]:
        samplers = [DistributedSampler(data, world, rank, seed=3) for rank in range(world)]
        return [DataLoader(data, batch, sampler=sampler, num_workers=workers) for sampler in samplers]

    expected: list[float] = []
    train(torch.ones(3), expected, loaders(1, 8, 0), 8)
    weight, got = torch.ones(3), list[float]()
    run = train(weight, got, loaders(4, 2, 0), 3)
    run = train(weight, got, loaders(2, 4, 2), 2, run)
    train(weight, got, loaders(8, 1, 0), 3, run)
    assert got == pytest.approx(expected, rel=1e-5)


def test_ranks_that_all_go_through_everything_keep_their_place() -> None:
    """Without a sampler that divides the data, every rank reads the whole epoch."""
    expected = undisturbed(shuffled(), epochs=1)[0]
    first = broken_off(shuffled(), stop=5)
    for _rank in range(3):
        assert first.seen[0] + first.resumed_by(shuffled()).go(epochs=1).seen[0] == expected


# Changed data or settings


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (shuffled, lambda: DataLoader(Numbers(40), batch_size=4, shuffle=True)),
        (shuffled, lambda: DataLoader(Numbers(), batch_sampler=Buckets())),
        (lambda: DataLoader(Numbers(), batch_sampler=Buckets()), shuffled),
        (lambda: [[1]] * 20, lambda: [[1]] * 19),
    ],
)
def test_other_data_is_refused(before: Callable[[], Any], after: Callable[[], Any]) -> None:
    run = broken_off(before(), stop=5).resumed_by(loader := after())
    with pytest.raises(CheckpointError, match=r"stands at batch 5 of \d+ of an epoch, but the loader now has \d+"):
        run.position.open_epoch(loader)


def test_a_sampler_that_ends_too_soon_is_refused() -> None:
    class Short(SequentialSampler):
        def __iter__(self) -> Iterator[int]:
            return iter(range(7))

    run = broken_off(DataLoader(Numbers(), batch_size=4), stop=5)
    loader = DataLoader(data := Numbers(), batch_size=4, sampler=Short(data))
    with pytest.raises(CheckpointError, match="stands after 20 samples or batches of an epoch, but the sampler ended"):
        run.resumed_by(loader).position.open_epoch(loader)


def test_another_number_of_workers_of_an_iterable_is_told(caplog: pytest.LogCaptureFixture) -> None:
    run = broken_off(DataLoader(Stream(), batch_size=4), stop=5)
    loader = DataLoader(Stream(), batch_size=4, num_workers=1)
    with caplog.at_level(logging.WARNING):
        run.resumed_by(loader).position.open_epoch(loader)
    assert "had 0 workers when it was saved, now it has 1" in caplog.text


# Random augmentation


class Augmented(Numbers):
    """A dataset that draws from all three global generators."""

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([float(index), random.random(), np.random.rand(), torch.rand(1).item()])


def test_replayed_augmentation_in_workers_is_exact() -> None:
    def loader() -> Any:
        return DataLoader(Augmented(), batch_size=4, shuffle=True, num_workers=2)

    expected = undisturbed(loader(), epochs=1)
    rest = broken_off(loader(), stop=7).resumed_by(loader(), replay=True).go(epochs=1)
    assert rest.seen[0] == expected[0][7:]


def test_replay_in_whole_batches(caplog: pytest.LogCaptureFixture) -> None:
    expected = samples(undisturbed(shuffled(), epochs=1)[0])
    with caplog.at_level(logging.WARNING):
        rest = broken_off(shuffled(), stop=5).resumed_by(shuffled(batch=8), replay=True).go(epochs=1)
    assert samples(rest.seen[0]) == expected[16:]
    assert "goes on at sample 16 of this rank instead of 20" in caplog.text


@pytest.mark.parametrize("persistent", [False, True])
def test_seeded_augmentation_is_exact_for_any_number_of_workers(persistent: bool) -> None:
    def loader(workers: int, batch: int = 4) -> Any:
        return DataLoader(
            SeededDataset(Augmented()), batch, num_workers=workers, persistent_workers=persistent and workers > 0
        )

    expected = [samples(epoch) for epoch in undisturbed(loader(0), epochs=2)]
    assert expected[0] != expected[1]
    assert [samples(epoch) for epoch in undisturbed(loader(2), epochs=2)] == expected
    rest = broken_off(loader(0), stop=17).resumed_by(loader(2, 5)).go(epochs=2)
    assert samples(rest.seen[0]) == expected[1][4 * (17 - 13) :]


def test_seeding_leaves_the_generators_alone() -> None:
    data = SeededDataset(Augmented())
    state = random_state.capture()
    expected = (random.random(), np.random.rand(), torch.rand(1))
    random_state.restore(state)
    first, second = data[3], data[np.int64(3)]
    assert (random.random(), np.random.rand(), torch.rand(1)) == expected
    assert torch.equal(first, second)
    assert not torch.equal(first[1:], SeededDataset(Augmented(), seed=1)[3][1:])


def test_seeding_needs_an_index() -> None:
    with pytest.raises(CheckpointError, match="an iterable one has no indices"):
        SeededDataset(Stream())


# Loaders with a state_dict


class Stateful:
    """Loader like torchdata's StatefulDataLoader: reads ahead; its state at the end of an epoch cannot be resumed."""

    def __init__(self, broken: bool = False) -> None:
        self.at, self.start, self.broken, self.loads = 0, 0, broken, 0

    def __iter__(self) -> Iterator[Any]:
        start, self.start = self.start, 0
        for self.at in range(start + 1, 11):
            yield [self.at]

    def state_dict(self) -> dict[str, Any]:
        assert self.at < 10, "not to be asked at the end"
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert not self.broken, "the number of workers must match"
        self.start, self.loads = state["at"], self.loads + 1


def test_a_loader_with_a_state_of_its_own_finds_its_place() -> None:
    expected = undisturbed(Stateful(), epochs=2)
    rest = broken_off(Stateful(), stop=14).resumed_by(loader := Stateful()).go(epochs=2)
    assert rest.seen[0] == expected[1][4:]
    assert loader.loads == 1


def test_a_loader_that_does_not_take_its_state_back() -> None:
    run = broken_off(Stateful(), stop=4).resumed_by(loader := Stateful(broken=True))
    with pytest.raises(CheckpointError, match=r"does not take back its own state: .*number of workers must match"):
        run.position.open_epoch(loader)


# Accelerate


@pytest.mark.parametrize("workers", [0, 2])
def test_accelerates_loader_skips_in_the_sampler(workers: int) -> None:
    accelerate = pytest.importorskip("accelerate")

    def loader() -> Any:
        return accelerate.Accelerator(cpu=True).prepare_data_loader(
            DataLoader(Reported(), batch_size=4, shuffle=True, num_workers=workers)
        )

    expected = undisturbed(loader())
    first = broken_off(loader(), stop=17)
    before = Reported.read.item()
    run = first.resumed_by(loader())
    rest = run.go()
    assert first.seen[1] + rest.seen[0] == expected[1]
    assert rest.seen[1] == expected[2]
    assert Reported.read.item() - before == 2 * SIZE - 4 * 4
