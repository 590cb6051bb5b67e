"""Detection of idle GPUs: what nvidia-smi may answer, and the count on a clock that tests move."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cloudgpu.runtime.agent.node.gpu_idle import IdleWatch, UnreadableError, parse, read_utilisation

ANSWER = "GPU-aa1, 0\nGPU-ab2, 97\nGPU-c3-d4, [N/A]\n"


@pytest.mark.parametrize(
    ("visible", "expected"),
    [("GPU-aa1", [0]), ("GPU-ab2,GPU-aa1", [97, 0]), (" GPU-aa , 1", [0, 97]), ("1", [97])],
)
def test_only_the_nodes_gpus_count(visible: str, expected: list[int]) -> None:
    assert parse(ANSWER, visible) == expected


def test_without_the_variable_all_gpus_count() -> None:
    assert parse("GPU-aa1, 0\n\nGPU-ab2, 100\n", None) == [0, 100]


@pytest.mark.parametrize(
    ("answer", "visible", "why"),
    [
        (ANSWER, "GPU-c3", r"the utilisation of GPU-c3-d4 is \[N/A\]"),
        (ANSWER, None, r"the utilisation of GPU-c3-d4 is \[N/A\]"),
        ("GPU-aa1, [GPU is lost]", "GPU-aa1", r"is \[GPU is lost\]"),
        ("GPU-aa1, -3", None, "is -3"),
        (ANSWER, "GPU-ff", "shows no GPU GPU-ff"),
        (ANSWER, "GPU-a", "shows no GPU GPU-a"),
        (ANSWER, "MIG-1", "shows no GPU MIG-1"),
        (ANSWER, "7", "shows no GPU 7"),
        (ANSWER, "", "CUDA_VISIBLE_DEVICES is empty"),
        ("", None, "shows no GPU"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the driver.", "GPU-aa1", "says: NVIDIA-SMI has"),
        ("GPU-aa1\n", "GPU-aa1", "says: GPU-aa1"),
        ("\x00\ufffd,,,", None, "nvidia-smi says"),
    ],
)
def test_what_cannot_be_read_is_not_idle(answer: str, visible: str | None, why: str) -> None:
    with pytest.raises(UnreadableError, match=why):
        parse(answer, visible)


def test_a_machine_without_nvidia_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UnreadableError, match="nvidia-smi: No such file or directory"):
        read_utilisation(None)


class Node:
    """An IdleWatch with fake GPUs and a fake clock."""

    def __init__(self) -> None:
        self.time = 1_000.0
        self.answer: Sequence[int] | UnreadableError = [0]
        self.reports: list[float | None] = []
        self.said: list[str] = []
        self.watch = IdleWatch(
            3_600, self.sample, report=self.reports.append, say=self.said.append, clock=lambda: self.time
        )

    def sample(self) -> Sequence[int]:
        if isinstance(self.answer, UnreadableError):
            raise self.answer
        return self.answer

    def look(self, answer: Sequence[int] | UnreadableError, after_s: float = 10.0) -> float | None:
        self.time, self.answer = self.time + after_s, answer
        self.watch.sample_once()
        return self.reports[-1]


def test_idle_seconds_add_up_until_any_gpu_works() -> None:
    node = Node()
    assert [node.look([0, 1]), node.look([1, 0], 20), node.look([0, 0])] == [0, 20, 30]
    assert node.look([0, 2]) == 0, "one of them works"
    assert [node.look([0, 0]), node.look([0, 0])] == [0, 10], "since it was first seen idle"
    assert node.said == []


def test_an_unreadable_gpu_begins_the_count_anew_and_is_said_once() -> None:
    node, lost = Node(), UnreadableError("the driver is gone")
    assert [node.look([0]), node.look([0])] == [0, 10]
    assert [node.look(lost) for _ in range(5)] == [None] * 5
    assert node.said == ["GPU utilisation cannot be read, so limits.gpu_idle has no effect: the driver is gone"]
    assert [node.look([0]), node.look([0])] == [0, 10]


def test_one_reading_that_fails_is_no_news() -> None:
    node = Node()
    for answer in ([0], UnreadableError("killed"), [0], UnreadableError("slow"), [0]):
        node.look(answer)
    assert node.said == []
    assert node.reports == [0, None, 0, None, 0]
