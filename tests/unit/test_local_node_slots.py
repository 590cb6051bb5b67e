"""Slots of this machine: their number, and no slot for two launches."""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path

import pytest

from cloudgpu.provisioners.base import NodeRequest, ProvisionError
from cloudgpu.provisioners.local.node_slots import SLOTS_VARIABLE, cores, hold_slots, slot_shortage, slots, slots_of

ALLOWED = len(os.sched_getaffinity(0))


def nodes(count: int, accelerator: str | None = None) -> list[NodeRequest]:
    gpus = Fraction(1 if accelerator else 0)
    return [NodeRequest(f"worker-{rank}.1", "worker", rank, rank, "local", accelerator, gpus) for rank in range(count)]


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("", {}, ALLOWED),
        ("0::/jobs/mine\n", {"jobs/mine/cpu.max": "max 100000\n"}, ALLOWED),
        ("0::/jobs/mine\n", {"jobs/mine/cpu.max": "100000 100000\n"}, 1),
        ("0::/jobs/mine\n", {"jobs/cpu.max": "150000 100000\n", "jobs/mine/cpu.max": "max 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "20000 100000\n"}, 1),
        ("0::/elsewhere\n", {"cpu.max": "100000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "99900000 100000\n"}, ALLOWED),
        ("0::/\n", {"cpu.max": "nonsense"}, ALLOWED),
        ("4:cpu,cpuacct:/a\n0::/\n", {"cpu/a/cpu.cfs_quota_us": "100000", "cpu/a/cpu.cfs_period_us": "100000"}, 1),
        ("4:cpu:/a\n", {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, ALLOWED),
        ("4:cpu:/a\n", {"cpu/a/cpu.cfs_quota_us": "100000", "cpu/a/cpu.cfs_period_us": "0"}, ALLOWED),
        ("4:cpuset:/a\n", {"cpu/a/cpu.cfs_quota_us": "100000", "cpu/a/cpu.cfs_period_us": "100000"}, ALLOWED),
    ],
)
def test_cores_that_may_be_used(tmp_path: Path, membership: str, files: dict[str, str], expected: int) -> None:
    """Source of the files' format: the kernel's cgroup-v2.rst, cgroup-v1/cpuacct.rst and sched-bwc.rst."""
    (tmp_path / "self").write_text(membership)
    for name, text in files.items():
        (path := tmp_path / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert cores(tmp_path / "self", tmp_path / "cgroup") == expected


def test_cores_without_cgroups(tmp_path: Path) -> None:
    assert cores(tmp_path / "none", tmp_path) == ALLOWED


def test_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SLOTS_VARIABLE, "7")
    assert slots() == 7
    for empty in ("", None):
        monkeypatch.setenv(SLOTS_VARIABLE, empty) if empty is not None else monkeypatch.delenv(SLOTS_VARIABLE)
        assert slots() == cores() >= 1


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "1001", "9" * 5_000, "\u0663"])
def test_a_setting_that_is_none(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(SLOTS_VARIABLE, text)
    with pytest.raises(ProvisionError, match="expected a whole number from 1 to 1,000") as caught:
        slots()
    assert caught.value.error_class == "invalid"


def test_how_many_a_launch_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SLOTS_VARIABLE, "4")
    assert [slots_of(nodes(count)) for count in (1, 4, 5)] == [1, 4, 4]
    assert slots_of([*nodes(3), *nodes(1, "L4")]) == 0


def test_all_or_none_and_freed_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SLOTS_VARIABLE, "3")
    folder = tmp_path / "slots"
    assert slot_shortage(nodes(3), 0, folder) == "" and not folder.exists(), "looking makes nothing"
    with hold_slots(2, folder) as held:
        assert len(held) == 2
        assert slot_shortage(nodes(1), 0, folder) == ""
        assert slot_shortage(nodes(1), 1, folder).endswith("; jobs ahead of it in the queue wait for slots as well")
        short = "needs 2 of this machine's 3 slots for jobs without GPUs, 1 are free"
        assert slot_shortage(nodes(2), 0, folder) == short
        with pytest.raises(ProvisionError, match=short) as caught, hold_slots(2, folder):
            pass
        assert caught.value.error_class == "capacity"
        with hold_slots(1, folder):
            assert slot_shortage(nodes(1), 0, folder) != ""
            assert slot_shortage(nodes(1, "L4"), 9, folder) == ""
    assert slot_shortage(nodes(3), 0, folder) == ""
