"""Fuzz test of the objects in a job dir and a fleet's folder: readers raise only expected errors, and cancel works.

CLOUDGPU_LONG=1 runs 10,000 mutations, and a supervisor ends as many jobs; by default both are fewer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import hashlib
import json
import logging
import math
import random
import shutil
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from urllib.parse import unquote

import pytest

from cloudgpu.cli.goodput import view as goodput_view
from cloudgpu.cli.metrics import curve
from cloudgpu.cli.shared.errors import CommandError
from cloudgpu.cli.shared.job.follow import LineFormat
from cloudgpu.cli.shared.job.job_at_url import JobAtUrl
from cloudgpu.cli.shared.job.job_view import _node_view
from cloudgpu.control.accounting.report import make_report
from cloudgpu.control.reconcile import node_observation
from cloudgpu.control.reconcile.node_replacement import every_node, next_repair, without_caused_restarts
from cloudgpu.control.reconcile.outcomes import attempt_outcome, must_stop_peers
from cloudgpu.control.store import serialization
from cloudgpu.control.store.model import Attempt
from cloudgpu.protocol.fleet.folder import Fleet
from cloudgpu.protocol.fleet.records import FLEET_KEY, Beat, End, Failure, Freed, Holding, Order, Settings, member_key
from cloudgpu.protocol.jobdir import (
    JOB_KEY,
    Address,
    AttemptRecord,
    Claim,
    Generation,
    Heartbeat,
    JobDir,
    JobDirError,
    JobRecord,
    NodeRecord,
    Notice,
    Progress,
    Record,
    Result,
    Signal,
    Span,
    Stop,
    Timeline,
    attempt_key,
    generation_key,
    local_url,
    node_key,
)
from cloudgpu.protocol.logs.reader import LogReader
from cloudgpu.protocol.metrics import Row, Segment, read_metrics
from cloudgpu.protocol.outputs import OutputsRecord, find_outputs, missing_outputs
from cloudgpu.protocol.sealed_secrets import BoxContent
from cloudgpu.provisioners.base import NodeState
from cloudgpu.runtime.agent.generations import Ledger
from cloudgpu.runtime.agent.heartbeat import read_progress
from cloudgpu.runtime.agent.membership import _PeerState
from cloudgpu.runtime.agent.node.program import _read_address
from cloudgpu.runtime.agent.restart import Budget
from cloudgpu.runtime.agent.resume import read_earlier_run
from cloudgpu.runtime.checkpoint.errors import UnusableError
from cloudgpu.runtime.checkpoint.format.manifest import Piece, RankManifest, manifest_file
from cloudgpu.runtime.checkpoint.store import CheckpointStore, Commit
from cloudgpu.runtime.fleet.work import Task
from cloudgpu.runtime.notices.acknowledge import Acknowledger, MachineName, Saved
from cloudgpu.runtime.notices.job_dir import NodeDir, simulated_notice, stop_order
from cloudgpu.tests.standins.cloud import Life, lives
from cloudgpu.tests.standins.control import World, make_offer, make_policy
from cloudgpu.tests.standins.fleets import FleetFolder
from cloudgpu.tests.standins.long_mode import LONG
from cloudgpu.tests.standins.mutations import ODD_NAMES, mutate, put

MUTATIONS = 10_000 if LONG else 2_500
"""Records of a job dir and of a fleet's folder together."""
BATCH = 25
JOBS = 10_000 if LONG else 25
"""Number of jobs that a supervisor ends, each with one mutation in its job dir."""
TIME = 1_700_000_000.0
NODES = ("worker-0.1", "worker-1.1")
CHECKPOINT = "00000020-0001-000000000000"
IN_FLEETS = {Settings, Order, Holding, Freed, End, Beat, Failure}
IN_OTHERS = {BoxContent, NodeRecord, Progress, Span, Timeline}
"""Records that are stored only inside another record."""


class Folder:
    """A job dir with one record of each kind, and all its readers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.dir = JobDir(local_url(path))
        offer = make_offer(nodes=2, gpus=1)
        self.attempt = Attempt(
            *("job-1", 1, "running", 1, offer, Decimal(1), "token", None, "", "", None, "", "", None, None),
            *(TIME, TIME, None, None),
        )
        progress = dataclasses.asdict(Progress(None, 90, 80, 9.0, 0.5, 0.1, 8.0, 0.2, 0.3, 60.0, 3_600.0))
        span = dataclasses.asdict(Span(1, TIME, TIME + 1, TIME + 9, "SIGKILL", progress))
        timeline = dataclasses.asdict(Timeline(TIME, TIME + 1, TIME + 2, [span, {**span, "generation": 2}], TIME + 20))
        records = [dataclasses.asdict(NodeRecord(node, "worker", i, i, 1)) for i, node in enumerate(NODES)]
        moved = Generation(2, "members", NODES[0], True, "x", 0.0, 1, 1, TIME, "n", records, 120.0, 80)
        lines = b"\n".join(json.dumps([TIME + i, i % 2, "stdout", f"step {i}"]).encode() for i in range(20))
        rows = Segment(CHECKPOINT, None, closed=False)
        rows.lines.append(json.dumps(Row(1, TIME, {"loss": 1.0}).to_json()).encode())
        manifest = RankManifest(CHECKPOINT, 0, 1, 20, 8, [Piece("a", "float64", (1,), 0)], None, ["0"]).to_bytes()
        unsigned = Commit(CHECKPOINT, [hashlib.sha256(manifest).hexdigest()], False, TIME)
        self.records: dict[str, Record] = {
            JOB_KEY: JobRecord("job-1", "job", "true", env={"A": "b"}, inputs={"data": "s3://b/x"}),
            attempt_key(1): AttemptRecord(1, offer.to_json(), records, 1, None, True),
            attempt_key(1, "stop.json"): Stop("cancel", TIME, 30.0),
            attempt_key(1, "signal.json"): Signal("n", 90.0),
            generation_key(1, 2): moved,
            node_key(1, NODES[0], "claim"): Claim("m-1", "n", TIME),
            node_key(1, NODES[0], "address.json"): Address("10.0.0.1", 29_500),
            node_key(1, NODES[0], "notice.json"): Notice("preempt", TIME, "aws", 120.0),
            node_key(1, NODES[0], "machine-name.json"): MachineName("m-1"),
            node_key(1, NODES[0], "saved-1.json"): Saved("1"),
            node_key(1, NODES[0], "heartbeat.json"): Heartbeat(5, TIME, "running", progress, 3.0, timeline),
            node_key(1, NODES[0], "result.json"): Result(
                "failed", 3, "exit code 3", TIME, TIME + 9, progress, False, timeline
            ),
            node_key(1, NODES[0], "outputs.json"): OutputsRecord({"outputs/a": 1}, {"outputs/a": "0" * 64}),
            f"checkpoints/{CHECKPOINT}/COMMIT.json": dataclasses.replace(unsigned, sha256=unsigned.digest()),
        }
        self.objects = {
            **{key: record.to_bytes() for key, record in self.records.items()},
            "outputs/a": b"1",
            node_key(1, NODES[1], "gave_up.json"): b'{"reason": "SlowDown", "time": 1}',
            node_key(1, NODES[0], "log/00000001.gz"): gzip.compress(lines, mtime=0),
            f"checkpoints/{CHECKPOINT}/metrics.jsonl": rows.to_bytes(),
            f"checkpoints/{CHECKPOINT}/{manifest_file(0)}": manifest,
        }
        for key, data in self.objects.items():
            self.dir.put(key, data)

    def mutate(self, rng: random.Random) -> str:
        """Change one of the objects; return its key."""
        key = rng.choice(list(self.objects))
        path = self.path / key
        path.unlink()
        if key.endswith((".gz", ".jsonl")):
            raw = gzip.decompress(self.objects[key]) if key.endswith(".gz") else self.objects[key]
            first, _, rest = raw.partition(b"\n")
            changed = mutate(rng, first) + b"\n" + rest
            path.write_bytes(gzip.compress(changed, 1, mtime=0) if rng.random() < 0.7 else changed)
        else:
            put(rng, path, self.objects[key])
        return key

    def mend(self, key: str) -> None:
        path = self.path / key
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        path.write_bytes(self.objects[key])

    def read(self, key: str) -> None:
        """Run all readers of an object; they may raise JobDirError and CommandError only."""
        readers = next(found for end, found in self._readers.items() if key.endswith(end))
        for reader in readers:
            try:
                reader()
            except (JobDirError, CommandError):
                continue

    @property
    def _readers(self) -> dict[str, tuple[Callable[[], None], ...]]:
        """Return the readers for each end of a key."""
        return {
            "log/00000001.gz": (self._print_log,),
            "metrics.jsonl": (self._print_metrics,),
            JOB_KEY: (self._visit,),
            "attempt.json": (self._visit,),
            "stop.json": (self._stop,),
            "notice.json": (self._stop,),
            "signal.json": (self._read_signal,),
            "outputs.json": (self._list_outputs,),
            "outputs/a": (self._list_outputs,),
            "machine-name.json": (self._acknowledge,),
            "saved-1.json": (self._acknowledge,),
            "gave_up.json": (self._supervise,),
            f"{CHECKPOINT}/COMMIT.json": (self._visit, self._read_commit),
            manifest_file(0): (self._visit, self._read_manifest, self._check_sizes),
            "": (self._supervise, self._show, self._serve),
        }

    def _list_outputs(self) -> None:
        for output in find_outputs(self.dir).found:
            assert isinstance(output.attempt, int | None)
        missing_outputs(self.dir, 1, NODES)

    def _supervise(self) -> None:
        requests = every_node(self.attempt)
        states = {node: NodeState(node, "running") for node in NODES}
        watches = node_observation.AttemptCache(1)
        views = node_observation.observe_nodes(self.dir, watches, requests, states, 0.0)
        views = node_observation.observe_nodes(self.dir, watches, requests, states, 5_000.0)
        record = node_observation.new_generation(self.dir, self.attempt, views)
        node_observation.is_closed(self.dir, self.attempt)
        node_observation.observe_nodes(
            self.dir, node_observation.AttemptCache(1), requests, {node: NodeState(node, "gone") for node in NODES}, 0.0
        )
        known = () if record is None else (record,)
        attempt = dataclasses.replace(self.attempt, generations=known)
        node_observation.read_furthest(self.dir, attempt)
        requests = every_node(attempt)
        views = node_observation.observe_nodes(self.dir, node_observation.AttemptCache(1), requests, {}, 0.0)
        must_stop_peers(views)
        next_repair(attempt, {view.node: view for view in views}, None, None)
        verdict = attempt_outcome(views)
        ended = dataclasses.replace(
            without_caused_restarts(attempt, views), timeline=verdict.timeline, progress=verdict.progress
        )
        serialization.decode_attempt(serialization.encode_row(ended))
        goodput_view.bar(make_report([ended], TIME + 100).times, 20)

    def _read_signal(self) -> None:
        Signal.read(self.dir, attempt_key(1, "signal.json"))

    def _acknowledge(self) -> None:
        it = Acknowledger(NodeDir(self.dir, 1, NODES[0]), lambda: None, lambda _: None, lambda _: None)
        it._named(["m-1"], it._nodes())
        it._is_ready(NODES[0], "1")

    def _read_commit(self) -> None:
        with contextlib.suppress(UnusableError):
            self._checkpoints.read_commit(self._checkpoints.names()[0])

    def _read_manifest(self) -> None:
        with contextlib.suppress(ValueError):  # of another version, according to the loader
            RankManifest.from_bytes(self.dir.get(f"checkpoints/{CHECKPOINT}/{manifest_file(0)}"))

    def _check_sizes(self) -> None:
        self._checkpoints.digests(self._checkpoints.names()[0], 1)

    @property
    def _checkpoints(self) -> CheckpointStore:
        return CheckpointStore(self.dir, "checkpoints")

    def _show(self) -> None:
        shown = [_node_view(self.dir, 1, node, rank) for rank, node in enumerate(NODES)]
        assert [view.phase for view in shown]
        self._visit()

    def _visit(self) -> None:
        form = LineFormat(JobAtUrl(self.dir.url), timestamps=True)
        assert form.close() == ""

    def _print_log(self) -> None:
        form = LineFormat(_Followed(), timestamps=True)  # type: ignore[arg-type]  # as far as it is used
        lines, _ = LogReader(self.dir).read()
        "".join(map(form, lines)).encode()

    def _print_metrics(self) -> None:
        for row in read_metrics(self.dir):
            curve([value for value in row.values.values() if math.isfinite(value)] or [1.0, 2.0], 20)

    def _serve(self) -> None:
        for node in NODES:
            _PeerState.read(self.dir, 1, node)
            read_earlier_run(self.dir, 1, node)
        Ledger(self.dir, 1, NODES[0], Budget(1, None), "group", heals=True).catch_up()
        _read_address(self.dir, node_key(1, NODES[0], "address.json"))
        read_progress(self.path / node_key(1, NODES[0], "heartbeat.json"))

    def _stop(self) -> None:
        simulated_notice(self.dir.get(node_key(1, NODES[0], "notice.json"), 1 << 20))
        stop_order(self.dir.get(attempt_key(1, "stop.json"), 1 << 20))


class _Followed:
    """Fields of a job that the format of log lines needs."""

    offer = make_offer(nodes=2, gpus=1)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Suppress the thousands of expected warnings."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_no_reader_of_a_job_dir_fails_with_what_it_does_not_expect(tmp_path: Path) -> None:
    rng, folder = random.Random(1), Folder(tmp_path)
    for key in folder.objects:
        folder.read(key)
    for number in range(MUTATIONS * 6 // 10):
        key = folder.mutate(rng)
        try:
            folder.read(key)
        except Exception as error:
            raise AssertionError(f"mutation {number}, of {key}") from error
        folder.mend(key)


def test_every_kind_of_record_is_among_those(tmp_path: Path) -> None:
    mutated = {type(record) for record in Folder(tmp_path).records.values()} | IN_FLEETS | IN_OTHERS
    kinds = {kind.__name__ for kind in Record.__subclasses__()} - {Task.__name__}  # stored only on the member's disk
    assert kinds == {kind.__name__ for kind in mutated}


def test_no_reader_of_a_fleet_fails_at_all(tmp_path: Path) -> None:
    rng, folder = random.Random(2), FleetFolder(tmp_path)
    for name in "abc":
        folder.machine(name)
    folder.fleet.put(FLEET_KEY, Settings(60.0, 10.0, 120.0, None))
    folder.order("t", "worker-0.1", "worker-1.1")
    folder.claim(1, "worker-0.1", "a")
    folder.free(1, "worker-0.1", "lost")
    folder.claim(1, "worker-0.2", "b")
    folder.order("u", "worker-0.1")
    folder.end(2)
    folder.fleet.put(member_key("c", "failed.json"), Settings())
    keys = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()]
    objects = {key: (tmp_path / key).read_bytes() for key in keys}
    for number in range(MUTATIONS * 4 // 10):
        key = rng.choice(keys)
        (tmp_path / key).unlink(missing_ok=True)
        put(rng, tmp_path / key, objects[key])
        odd = tmp_path / rng.choice(_ODD_PLACES) / rng.choice(ODD_NAMES)
        is_new = not odd.exists() and not any(part.is_file() or part.is_symlink() for part in odd.parents)
        if is_new:
            odd.parent.mkdir(parents=True, exist_ok=True)
            odd.write_bytes(b"{}")
        try:
            _use(Fleet(folder.fleet.url))
        except Exception as error:
            raise AssertionError(f"mutation {number}, of {key}, with {odd}") from error
        if is_new:
            odd.unlink()
        if (tmp_path / key).is_dir():
            shutil.rmtree(tmp_path / key)
        (tmp_path / key).unlink(missing_ok=True)
        (tmp_path / key).write_bytes(objects[key])


_ODD_PLACES = ["", "orders", "orders/00000001", "orders/00000001/claims", "orders/00000001/claims/worker-0.1-x"]
_ODD_PLACES += ["orders/00000001/freed", "orders/9", "orders/99999999", "members", "members/a", "members/a/b", "agent"]


def _use(fleet: Fleet) -> None:
    """Run every query that members, supervisors and commands make to a fleet."""
    for _ in range(2):
        view = fleet.view()
        for machine in ("a", "x"):
            view.wanted(machine)
            view.yields_to_others(machine)
        for one in view.orders:
            assert view.withdrawal_reason(one) or one.is_over or not view.must_release(one.number, "x")
            assert view.orders_ahead(one) >= 0
        assert all(fleet.failure(machine) is None or True for machine in view.failed)
        assert view.settings.has_expired in (True, False)


def test_a_job_ends_when_it_is_cancelled_whatever_is_in_its_job_dir(tmp_path: Path, template: Path) -> None:
    rng = random.Random(3)
    for batch in range(JOBS // BATCH):
        world = World(tmp_path / f"world-{batch}", template)
        world.cloud.script = lives(Life(run_s=1e9))
        _cancel_all(world, rng)
        world.store.close()
        shutil.rmtree(world.folder)


def _cancel_all(world: World, rng: random.Random) -> None:
    """Run jobs, damage the job dir of each, and cancel them."""
    policy = make_policy(preemptions=0, failures=0)
    jobs = [world.submit(make_offer(nodes=rng.choice((1, 2))), policy=policy) for _ in range(BATCH)]
    supervisor = world.supervisor()
    world.drive(supervisor, until=lambda: all(world.job(job).state == "running" for job in jobs))
    for job in jobs:
        _spoil(rng, Path(unquote(world.job(job).job_dir.removeprefix("file://"))))
    supervisor.tick(woken=jobs)
    for active in world.store.active_jobs():
        world.store.set_goal(active.id, "cancel", "cancel", world.clock.now())
    world.drive(supervisor, for_s=600.0)
    world.check_clean()
    assert {world.job(job).state for job in jobs} <= {"cancelled", "failed", "succeeded"}


def _spoil(rng: random.Random, folder: Path) -> None:
    """Write an invalid object under one of the keys that a supervisor reads."""
    progress = dataclasses.asdict(Progress(step=9))
    objects = {
        "heartbeat.json": Heartbeat(10**6, TIME, "running", progress, None, {"claimed": TIME}).to_bytes(),
        "result.json": Result("succeeded", 0, "", TIME, TIME + 1, progress).to_bytes(),
        "notice.json": Notice("preempt", TIME, "aws").to_bytes(),
    }
    name = rng.choice([*objects, "generation", "stop", "job"])
    if name in objects:
        path, data = folder / node_key(1, "worker-0.1", name), objects[name]
    elif name == "generation":
        path = folder / generation_key(1, 2)
        data = Generation(2, "failure", "worker-0.1", True, "x", 0.0, 1, 1, TIME, "n").to_bytes()
    elif name == "stop":
        path, data = folder / attempt_key(1, "stop.json"), Stop("cancel", TIME).to_bytes()
    else:
        path, data = folder / JOB_KEY, JobRecord("job-1", "job", "true").to_bytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    put(rng, path, data)
