"""`cloudgpu logs s3://…`: reads a job's log from its folder alone, without a store that knows the job."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudgpu.cli import main
from cloudgpu.cli.shared.job.job_at_url import LINGER_S, JobAtUrl
from cloudgpu.protocol.jobdir import AttemptRecord, JobDir, Result, attempt_key, node_key

from ..standins import s3
from ..standins.agents import World, world

__all__ = ["world"]

OFFER = {
    "cloud": "aws",
    "region": "us-east-1",
    "zone": "us-east-1a",
    "market": "spot",
    "roles": [
        {
            "role": "worker",
            "nodes": 1,
            "machine_type": "g4dn.xlarge",
            "accelerator": "T4",
            "count": "1",
            "vcpus": 4,
            "memory_gb": 16,
            "price_usd_h": None,
        }
    ],
    "disk_gb": 100,
    "disk_price_usd_h": None,
    "price_usd_h": None,
    "price_date": None,
    "notes": [],
}


@pytest.fixture
def remote(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    """Put the job dir in S3, and use a computer whose store is empty."""
    with s3.running() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "another computer"))
        world.dir = JobDir(store.url)
        yield world


def describe(remote: World, number: int = 1) -> None:
    remote.dir.put(attempt_key(number), AttemptRecord(number, OFFER, remote.records).to_bytes())


def end(remote: World, outcome: str, node: str = "worker-0.1", attempt: int = 1) -> None:
    remote.dir.put(node_key(attempt, node, "result.json"), Result(outcome, 0, "", 0.0, 1.0).to_bytes())  # type: ignore[arg-type]


def test_it_is_printed_and_followed_to_the_end(remote: World, capsys: pytest.CaptureFixture[str]) -> None:
    remote.job("echo one; echo two")
    describe(remote)
    remote.run()
    capsys.readouterr()
    assert main(["logs", remote.dir.url]) == 0
    assert capsys.readouterr().out == "one\ntwo\n"
    assert main(["logs", "--follow", remote.dir.url]) == 0
    printed = capsys.readouterr()
    assert printed.out == "one\ntwo\n"
    assert "worker-0.1 succeeded" in printed.err


@pytest.mark.alone
def test_lines_are_at_most_three_seconds_behind(remote: World) -> None:
    count = 12
    remote.job(f"python3 -uc 'import time\nfor _ in range({count}): print(time.time()); time.sleep(0.4)'")
    describe(remote)
    agent = remote.start(0)
    command = [sys.executable, "-m", "cloudgpu", "logs", "--follow", remote.dir.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as reader:
        assert reader.stdout is not None
        started = time.time()
        behind = [time.time() - max(float(line), started) for line in reader.stdout]
        assert reader.wait(180) == 0
    assert agent.wait(180) == 0
    assert len(behind) == count
    assert statistics.median(behind) < 3.0, behind


def test_a_missing_job_is_an_error(remote: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", "s3://bucket/nothing"]) != 0
    assert "there is no job at s3://bucket/nothing" in capsys.readouterr().err


class TestTheEnd:
    @pytest.fixture
    def job(self, remote: World) -> World:
        remote.job("true")
        describe(remote)
        remote.dir.put(node_key(1, "worker-0.1", "claim"), b"{}")
        return remote

    def test_it_has_come_when_all_nodes_have_succeeded(self, job: World) -> None:
        found = JobAtUrl(job.dir.url)
        assert not found.done
        end(job, "succeeded")
        assert found.refresh().done

    def test_a_failure_may_be_followed_by_another_attempt(self, job: World) -> None:
        now = 0.0
        found = JobAtUrl(job.dir.url, clock=lambda: now)
        end(job, "failed")
        assert not found.refresh().done
        now = LINGER_S - 1
        describe(job, 2)
        job.dir.put(node_key(2, "worker-0.1", "claim"), b"{}")
        assert not found.refresh().done
        now += 10 * LINGER_S
        assert not found.refresh().done  # the second attempt runs
        end(job, "failed", attempt=2)
        found.refresh()
        now += LINGER_S + 1
        assert found.refresh().done

    def test_a_move_counts_once_a_node_runs_in_the_other_cloud(self, job: World, tmp_path: Path) -> None:
        now, there = 0.0, JobDir((tmp_path / "there").as_uri())
        found = JobAtUrl(job.dir.url, clock=lambda: now)

        def move(number: int) -> None:
            record = AttemptRecord(number, OFFER, job.records, job_dir=there.url).to_bytes()
            job.dir.put(attempt_key(number), record)

        move(2)
        assert not found.refresh().done and found.moved_to == there.url
        describe(job, 3)
        job.dir.put(node_key(3, "worker-0.1", "claim"), b"{}")
        assert not found.refresh().done and found.moved_to == ""
        move(4)
        assert not found.refresh().done
        there.put(node_key(4, "worker-0.1", "claim"), b"{}")
        assert found.refresh().done and found.moved_to == there.url
        move(5)
        assert not found.refresh().done
        now += LINGER_S + 1
        assert found.refresh().done

    def test_a_machine_that_was_replaced_does_not_count(self, job: World) -> None:
        end(job, "preempted")
        job.dir.put(node_key(1, "worker-0.2", "claim"), b"{}")
        found = JobAtUrl(job.dir.url)
        assert not found.done
        end(job, "succeeded", node="worker-0.2")
        assert found.refresh().done
