"""Requests per minute of a node's reports: in the steady state, while a command watches, and around the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cloudgpu.protocol.attempt_signal import WatchMark, send_signal, signal_key
from cloudgpu.protocol.jobdir import Heartbeat, JobDir, Notice, Stop, attempt_key, local_url, node_key
from cloudgpu.protocol.logs.reader import LogReader
from cloudgpu.protocol.pace import BEAT_S, LOG_S, SETTLE_S, Pace

from ..standins import s3
from ..standins.reporting import FASTER, NODE, ReportingNode, reporting_node


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ReportingNode]:
    with s3.running() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        with reporting_node(store, tmp_path) as made:
            yield made


def soon(condition: Callable[[], object], limit_s: float) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.005)


def settle(node: ReportingNode) -> None:
    """Wait for the steady state."""
    soon(lambda: not node.pace.is_quick, 30.0)
    time.sleep(10 / FASTER)


def test_at_most_one_write_a_minute_while_no_command_watches(node: ReportingNode) -> None:
    assert 60 / BEAT_S + 60 / LOG_S <= 1.0
    settle(node)
    minutes = 6
    made = node.requests(minutes)
    assert made["PUT"] <= minutes + 2, made  # plus one of each at the boundaries
    assert made["PUT"] >= 1
    assert made["GET"] + made["HEAD"] <= 40 * minutes, made
    assert made.get("list", 0) == 0, made
    beat = Heartbeat.from_bytes(node.job_dir.get(node_key(1, NODE, "heartbeat.json")))
    assert beat.next_s * FASTER == BEAT_S


def test_while_a_command_watches_heartbeat_and_log_come_often(node: ReportingNode) -> None:
    settle(node)
    mark = WatchMark()
    mark.renew(node.job_dir, 1)
    mark.renew(node.job_dir, 1)
    assert node.store.count("PUT", "signal.json") == 1  # at most once a minute
    soon(lambda: node.pace.is_quick, 10.0)
    made = node.requests(1)
    assert made["PUT"] > 10, made


def test_a_store_that_slows_down_for_minutes_ends_no_training(node: ReportingNode) -> None:
    """A node in training tolerates it for an hour, which is a minute here."""
    settle(node)
    for kind in ("PUT", "GET", "HEAD", "list"):
        node.store.fail(kind, status=503, code="SlowDown")
    made = node.requests(3)
    assert made["PUT"] >= 1, made
    with node.store.lock:
        node.store.faults.clear()
    key = node_key(1, NODE, "heartbeat.json")
    before = Heartbeat.from_bytes(node.job_dir.get(key)).sequence
    soon(lambda: Heartbeat.from_bytes(node.job_dir.get(key)).sequence > before + 1, 60.0)
    assert [line.text for line in LogReader(node.job_dir).read(limit=10**6)[0] if line.text.startswith("lost: ")] == []


def test_an_order_is_seen_by_its_signal(node: ReportingNode) -> None:
    """Times are real seconds: the node's clock runs 60 times faster."""
    settle(node)
    node.job_dir.put(attempt_key(1, "stop.json"), Stop("cancel", time.time() + 30, 30.0).to_bytes())
    send_signal(node.job_dir, 1)
    begun = time.monotonic()
    soon(lambda: node.orders.deciding, 0.9)  # without a signal, polling would need up to a minute of the node's time
    assert time.monotonic() - begun < 0.9
    soon(lambda: any("cancelled" in line.text for line in LogReader(node.job_dir).read(limit=10**6)[0]), 5.0)


def test_an_older_supervisors_stop_is_found_within_a_minute(node: ReportingNode) -> None:
    settle(node)
    node.job_dir.put(attempt_key(1, "stop.json"), Stop("cancel", time.time() + 30, 30.0).to_bytes())
    soon(lambda: node.orders.deciding, 10.0)


def test_a_notice_of_a_preempt_command(node: ReportingNode) -> None:
    settle(node)
    node.job_dir.put(node_key(1, NODE, "notice.json"), Notice("preempt", time.time() + 60, "test", 60.0).to_bytes())
    send_signal(node.job_dir, 1)
    soon(lambda: node.orders.deciding, 5.0)


@pytest.mark.parametrize("content", [b"", b"[]", b'{"nonce": 1, "watch_s": "x"}', b'{"nonce": "n", "watch_s": NaN}'])
def test_a_signal_that_is_rubbish_is_a_signal(content: bytes, node: ReportingNode) -> None:
    settle(node)
    node.job_dir.put(signal_key(1), content)
    node.job_dir.put(attempt_key(1, "stop.json"), Stop("cancel", time.time() + 30, 30.0).to_bytes())
    soon(lambda: node.orders.deciding, 10.0)


def test_a_local_folder_has_no_signal(tmp_path: Path) -> None:
    job_dir = JobDir(local_url(tmp_path / "job"))
    send_signal(job_dir, 1)
    WatchMark().renew(job_dir, 1)
    assert job_dir.list("attempts") == []


def test_pace() -> None:
    now = [0.0]
    pace = Pace(free=False, clock=lambda: now[0])

    def is_quick_at(seconds: float) -> bool:
        now[0] = seconds
        return pace.is_quick

    assert is_quick_at(1e6), "until the program has begun"
    now[0] = 0.0
    pace.settle()
    assert [is_quick_at(SETTLE_S - 1), is_quick_at(SETTLE_S)] == [True, False]
    pace.watched(90.0)
    pace.watched(0.0)  # does not shorten the watch
    assert [is_quick_at(SETTLE_S + 89), is_quick_at(SETTLE_S + 90)] == [True, False]
    pace.stay_quick()
    assert is_quick_at(1e6)
    assert Pace(free=True).is_quick
