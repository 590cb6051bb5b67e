"""A node that reports to an object store: the agent's heartbeat, log and order threads, in accelerated time."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from cloudgpu.protocol import pace
from cloudgpu.protocol.jobdir import JOB_KEY, JobDir, node_key
from cloudgpu.protocol.logs import writer
from cloudgpu.protocol.logs.writer import LogWriter
from cloudgpu.protocol.pace import Pace
from cloudgpu.runtime.agent import heartbeat
from cloudgpu.runtime.agent.heartbeat import HeartbeatThread
from cloudgpu.runtime.agent.timeline import History
from cloudgpu.runtime.notices import Orders, Watcher
from cloudgpu.runtime.notices import job_dir as orders_module

from . import s3

FASTER = 60
"""A minute of the node takes a second of the test."""
NODE = "worker-0.1"
_SECONDS = {
    (pace, "SETTLE_S"),
    (heartbeat, "BEAT_S"),
    (heartbeat, "_LOOK_S"),
    (heartbeat, "_FAR_INTERVAL_S"),
    (writer, "LOG_S"),
    (writer, "_GATHER_S"),
    (writer, "_IDLE_S"),
    (orders_module, "_POLL_S"),
    (orders_module, "_ORDERS_S"),
}


@dataclass
class ReportingNode:
    """A node whose program prints continuously."""

    store: s3.S3
    job_dir: JobDir
    heart: HeartbeatThread
    log: LogWriter
    orders: Orders
    pace: Pace

    def requests(self, minutes: float) -> dict[str, int]:
        """Return the number of requests of each kind in the node's next `minutes`."""
        before = len(self.store.requests)
        time.sleep(minutes * 60 / FASTER)
        made = [request.kind for request in self.store.requests[before:]]
        return {kind: made.count(kind) for kind in sorted(set(made))}


@contextlib.contextmanager
def reporting_node(store: s3.S3, folder: Path) -> Iterator[ReportingNode]:
    """Run a node of attempt 1 whose program has started; the environment must point to the store."""
    job_dir = JobDir(store.url)
    job_dir.put(JOB_KEY, b"{}")
    over = threading.Event()
    with contextlib.ExitStack() as stack:
        for module, name in _SECONDS:
            stack.enter_context(mock.patch.object(module, name, getattr(module, name) / FASTER))
        far = tuple(seconds / FASTER for seconds in writer._FAR_INTERVAL_S)
        stack.enter_context(mock.patch.object(writer, "_FAR_INTERVAL_S", far))
        own, orders = Pace(free=False), Orders(lambda: None)
        log = LogWriter(job_dir, 1, NODE, pace=own)
        heart = HeartbeatThread(
            job_dir,
            node_key(1, NODE, "heartbeat.json"),
            folder / "progress.json",
            History(),
            attempt=1,
            on_lost=lambda why: log.add_agent_line(f"lost: {why}"),
            on_superseded=lambda: None,
            retry_timeout_s=lambda: 60.0,
            pace=own,
        )
        watcher = Watcher(job_dir, 1, NODE, orders, log.add_agent_line, pace=own)

        def program() -> None:
            number = 0
            while not over.wait(0.01):
                number += 1
                log.add("stdout", 0, f"step {number} loss 0.{number:06d}")

        printing = threading.Thread(target=program, daemon=True)
        printing.start()
        heart.set_phase("running")
        try:
            yield ReportingNode(store, job_dir, heart, log, orders, own)
        finally:
            over.set()
            printing.join()
            heart.stop()
            watcher.stop()
            log.close(10)
            time.sleep(0.1)  # the threads still read the accelerated intervals
