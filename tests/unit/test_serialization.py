"""JSON of stored rows: rows of the previous version are read, and written back unchanged."""

from __future__ import annotations

import dataclasses
import json
from fractions import Fraction
from typing import Any

import pytest

from cloudgpu.control.errors import DamagedRowError
from cloudgpu.control.store import serialization


def dump(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


OFFERED: dict[str, Any] = {
    "cloud": "local",
    "disk_gb": 10.0,
    "disk_price_usd_h": "0",
    "market": "on-demand",
    "notes": [],
    "price_at_most": False,
    "price_date": "2026-01-01",
    "price_from_usd_h": None,
    "price_usd_h": "3.6",
    "region": "here",
    "roles": [
        {
            "accelerator": "L4",
            "count": "1",
            "machine_type": "local",
            "memory_gb": 4.0,
            "nodes": 2,
            "price_usd_h": "3.6",
            "role": "worker",
            "vcpus": 2,
        }
    ],
}
JOB: dict[str, Any] = {
    "id": "job-00000001",
    "name": "job",
    "state": "succeeded",
    "goal": "run",
    "cause": "",
    "reason": "",
    "exit_code": 0,
    "spec": dump({"name": "job", "run": "true"}),
    "policy": dump(
        {
            "accounts": None,
            "agents": {"x86_64": "ab"},
            "capacity_s": None,
            "cost_usd": "12.50",
            "duration_s": None,
            "failures": 1,
            "gpu_idle_s": None,
            "grouped": False,
            "images": {},
            "job_dirs": {"aws": "s3://b/j", "gcp": "gs://b/j"},
            "least_nodes": None,
            "preemptions": None,
            "price_usd": None,
            "priority": 0,
            "reads": ["s3://b/x"],
            "reads_on": None,
        }
    ),
    "offers": dump([{**OFFERED, "zone": ["a-1", "a-2"]}]),
    "job_dir": "file:///tmp/jobs/job-00000001",
    "job_sha256": "c6154d61aaa13923bc38ecd0863c01fe07f115eb864522279b1c0506e412800b",
    "owner": "tester",
    "attempt": 2,
    "round": 0,
    "waits": 0,
    "not_before": 0.0,
    "spent": "0.061626",
    "created": 1700000000.0,
    "updated": 1700000061.6760476,
    "ended": 1700000061.6760476,
    "lease_owner": "elsewhere/1/a",
    "lease_beat": 14,
    "waiting_since": None,
    "run": None,
    "source": None,
}
ATTEMPT: dict[str, Any] = {
    "job_id": "job-00000001",
    "number": 2,
    "state": "ended",
    "round": 0,
    "offer": dump({**OFFERED, "zone": "a-2"}),
    "price": "3.6",
    "token": "1b140d8fba16bc212fc53434a2f76c39",
    "allocation": dump(
        {
            "attempt": 2,
            "details": {},
            "is_fresh": True,
            "job_id": "job-00000001",
            "machines": {"worker-0.1": "m-1b140d-worker-0.1", "worker-1.1": "m-1b140d-worker-1.1"},
            "target": "local",
            "token": "1b140d8fba16bc212fc53434a2f76c39",
        }
    ),
    "cause": "",
    "scope": "",
    "deadline": None,
    "outcome": "succeeded",
    "reason": "",
    "exit_code": 0,
    "progress": dump(
        {
            "blocked_seconds": 0.0,
            "cost": None,
            "interval": None,
            "lag": None,
            "mean": None,
            "restore_seconds": 0.0,
            "restored_step": None,
            "saved_seconds": None,
            "saved_step": 580,
            "step": 589,
            "step_seconds": 58.997008085250854,
        }
    ),
    "created": 1700000000.03,
    "launched": 1700000000.04,
    "ended": 1700000061.6660476,
    "cost": "0.061626",
    "generations": dump(
        [
            {
                "failures": 0,
                "generation": 2,
                "grace_s": 0.0,
                "group": True,
                "interruptions": 1,
                "kind": "members",
                "node": "worker-1.1",
                "nodes": [
                    {"gpus": 1, "index": 0, "node": "worker-0.1", "rank": 0, "role": "worker"},
                    {"gpus": 1, "index": 1, "node": "worker-1.2", "rank": 1, "role": "worker"},
                ],
                "nonce": "elsewhere/1/a",
                "pause_s": 0.0,
                "reason": "worker-1.2 joins",
                "saved_step": 580,
                "time": 1700000012.5,
            }
        ]
    ),
    "timeline": dump(
        {
            "claimed": 1700000000.05,
            "ended": None,
            "ready": None,
            "setup": None,
            "spans": [
                {
                    "ended": None,
                    "first_step": None,
                    "generation": 1,
                    "progress": {
                        "blocked_seconds": 0.0,
                        "cost": None,
                        "interval": None,
                        "lag": None,
                        "mean": None,
                        "restore_seconds": 0.0,
                        "restored_step": None,
                        "saved_seconds": None,
                        "saved_step": 580,
                        "step": 589,
                        "step_seconds": 58.997008085250854,
                    },
                    "reason": "",
                    "started": 1700000001.0529919,
                }
            ],
        }
    ),
    "nodes": dump(
        [
            {
                "accelerator": "L4",
                "count": "1",
                "index": 0,
                "machine_type": "local",
                "node": "worker-0.1",
                "rank": 0,
                "role": "worker",
            },
            {
                "accelerator": "L4",
                "count": "1",
                "index": 1,
                "machine_type": "local",
                "node": "worker-1.1",
                "rank": 1,
                "role": "worker",
            },
        ]
    ),
    "hints": dump(["a-3"]),
    "account": "",
    "seen": dump({"step": 586, "time": 1700000059.656047}),
}
"""Rows as stored by the version before typed rows."""
OFFER, POLICY = json.loads(ATTEMPT["offer"]), json.loads(JOB["policy"])
ROLE = OFFER["roles"][0]


def test_rows_of_the_version_before_are_read_and_written_again_as_they_were() -> None:
    job, attempt = serialization.decode_job(JOB), serialization.decode_attempt(ATTEMPT)
    assert [(offer.zone, offer.roles[0].count) for offer in job.offers] == [("a-1", Fraction(1)), ("a-2", Fraction(1))]
    assert (job.policy.agents, job.policy.accounts) == ({"x86_64": "ab"}, {})
    assert job.dir_on("aws") == "s3://b/j" and job.dir_on("azure") == job.job_dir
    assert [(record.kind, record.interruptions) for record in attempt.generations] == [("members", 1)]
    assert attempt.nodes is not None and attempt.nodes[1].node == "worker-1.1"
    assert serialization.encode_row(job) == JOB
    written, before = serialization.encode_row(attempt), json.loads(ATTEMPT["allocation"])
    allocation = json.loads(written["allocation"])
    assert written == {**ATTEMPT, "allocation": dump(allocation)}
    assert allocation == {**allocation, **before}, "it has more fields now, and those of before as they were"
    assert serialization.decode_attempt(written) == attempt


def test_an_older_row_has_less() -> None:
    offer = {key: value for key, value in OFFER.items() if key not in {"price_at_most", "price_from_usd_h"}}
    later = ("generations", "timeline", "nodes", "hints", "account", "seen", "progress", "allocation")
    attempt = serialization.decode_attempt({**ATTEMPT, **dict.fromkeys(later), "offer": dump(offer)})
    assert (attempt.generations, attempt.hints, attempt.nodes, attempt.offer.price_at_most) == (
        (),
        (),
        None,
        False,
    )
    policy = {"preemptions": None, "failures": 1, "duration_s": 60, "cost_usd": None, "gpu_idle_s": None, "later": 1}
    job = serialization.decode_job({**JOB, "policy": dump(policy), "offers": dump([offer])})
    assert (job.policy.duration_s, job.policy.agents, [one.zone for one in job.offers]) == (60, {}, ["a-2"])


def test_only_what_has_changed_is_written() -> None:
    job = serialization.decode_job(JOB)
    changed = dataclasses.replace(job, state="failed", reason="x", waits=job.waits)
    assert serialization.encode_changes(job, changed) == {"state": "failed", "reason": "x"}


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("offer", {**OFFER, "cloud": 5}),
        ("offer", {**OFFER, "roles": [{**ROLE, "nodes": "two"}]}),
        ("offer", {**OFFER, "roles": [{**ROLE, "count": "1/0"}]}),
        ("allocation", {**json.loads(ATTEMPT["allocation"]), "machines": ["worker-0.1"]}),
        ("nodes", [{**json.loads(ATTEMPT["nodes"])[0], "rank": "first"}]),
        ("nodes", {}),
        ("generations", [{"generation": 2, "kind": "failure"}]),
        ("timeline", {"claimed": 1.0, "spans": [{}]}),
        ("progress", [1]),
        ("hints", [5]),
        ("seen", {"step": "many", "time": 1.0}),
    ],
)
def test_a_value_of_another_type_is_damage_of_an_attempt(column: str, value: object) -> None:
    with pytest.raises(DamagedRowError, match="attempt 2 of job job-00000001 is damaged in the store"):
        serialization.decode_attempt({**ATTEMPT, column: dump(value)})


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("policy", {**POLICY, "failures": "one"}),
        ("policy", {**POLICY, "job_dirs": {"aws": 5}}),
        ("policy", {**POLICY, "cost_usd": "much"}),
        ("offers", [{**json.loads(JOB["offers"])[0], "zone": [5]}]),
        ("spec", []),
    ],
)
def test_a_value_of_another_type_is_damage_of_a_job(column: str, value: object) -> None:
    with pytest.raises(DamagedRowError, match="job job-00000001 is damaged in the store"):
        serialization.decode_job({**JOB, column: dump(value)})
