"""Observe the nodes of an attempt: their machines' states at the target, and their records in the job dir."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from ...protocol.jobdir import (
    Generation,
    Heartbeat,
    JobDir,
    Progress,
    RecordError,
    Result,
    Timeline,
    node_key,
    read_generation,
)
from ...provisioners.base import NodeRequest, NodeState
from ..accounting.paid_time import merge_timelines, progress_of, timeline_of
from ..store.model import Attempt
from .node_replacement import all_node_names, every_node, node_without_incarnation, wanted_nodes
from .outcomes import NodeEnd, NodeView, end_by_absence, end_by_result, furthest

log = logging.getLogger("cloudgpu.supervisor")

BOOT_S = 1_200.0
"""Boot timeout in seconds: maximum time to the first report after launch or after a restart by the provider."""
SILENT_S = 180.0
"""Seconds without a heartbeat after which a machine that has reported is lost, even if the target shows it running.
If the machine announced a longer heartbeat interval, the limit is MISSED intervals."""
MISSED = 3.0
"""Heartbeat intervals that may pass without a heartbeat."""
LONGEST_SILENCE_S = 900.0
"""Maximum seconds of silence, regardless of the announced heartbeat interval."""

GAVE_UP = "gave_up.json"
"""Record of a node: why its machine ended itself without a result (written by
provisioners/boot/shipped/bootstrap.py)."""
_REASON = 1_000
"""Maximum characters of the reason that are read from a GAVE_UP record."""
_MOST_GAVE_UP = 64 << 10
"""Maximum size in bytes of a GAVE_UP record."""

MAX_POLL_GAP_S = 30.0
"""Maximum seconds between two polls that count as silence of a node. The rest of a longer gap does not count: the
supervisor could not poll, e.g. because its laptop was suspended."""

_MISSING, _UNREADABLE = -1, -2
"""Used instead of a heartbeat's sequence number: the heartbeat is missing; it is invalid."""

UNSEEN_S = 600.0
"""Seconds without a poll after which machines may have ended unobserved; a supervisor normally polls at much shorter
intervals. Their end is then assumed to be this long after their last heartbeat."""


SETTLED_READ_S = (3.0, 60.0)
"""Minimum and maximum seconds between two reads of heartbeats and results from an object store, where requests cost
money, while all machines of an attempt run. If a machine leaves `running`, its records are read at once. Azure's lists
do not show that a machine has stopped, so there only these reads detect the end."""
SETTLED_READS = 15.0
"""Target rate of reads per second over all jobs, from which the pause within SETTLED_READ_S follows; a read is two
requests."""


def settled_read_s(jobs: int, nodes: int) -> float:
    """Return the seconds between two reads of a running node, for the number of watched jobs and the nodes of one of
    them."""
    least, most = SETTLED_READ_S
    return min(max(least, jobs * nodes / SETTLED_READS), most)


@dataclass(slots=True)
class NodeCache:
    """Cached observations of a node. A new process starts with an empty cache and reaches the same result."""

    end: NodeEnd | None = None
    """End of the node, which never changes; None: the node has not ended."""
    progress: Progress | None = None
    timeline: Timeline | None = None
    begun: bool = False
    waiting: bool = False
    reported: bool = False
    gpu_idle_s: float | None = None
    sequence: int = -1
    damage: str = ""
    """Error of reading the node's last heartbeat; "": none."""
    returning: bool = False
    """True if the provider has begun to restart the machine since its last heartbeat."""
    silence_s: float = SILENT_S
    """Seconds without a new heartbeat after which the node is lost."""
    heard: float | None = None
    """Monotonic time at which a new heartbeat was last read, or the node was first polled; None: not polled yet."""
    secrets_key: str = ""
    secrets_proof: str = ""
    last_report: float | None = None
    """Time of the node's last report; see NodeView."""
    read: float = -math.inf
    """Monotonic time of the last read of the node's heartbeat and result."""


@dataclass(slots=True)
class AttemptCache:
    """Cached observations of all nodes of one attempt."""

    attempt: int
    nodes: dict[str, NodeCache] = field(default_factory=dict)
    last_poll: float | None = None
    """Monotonic time of the last poll of its machines; None: this process has not polled yet."""
    went_unseen: bool = False
    """True if all machines are gone, and they ended during more than UNSEEN_S without a poll."""

    def record_poll(self, now: float, *, gone: bool) -> None:
        """Record a poll. `now`: monotonic time; `gone`: all machines are gone."""
        pause = None if self.last_poll is None else now - self.last_poll
        unseen = pause is None or pause > UNSEEN_S
        self.went_unseen, self.last_poll = gone and (self.went_unseen or unseen), now
        for watch in self.nodes.values():
            if watch.heard is not None:
                watch.heard += max(0.0, (pause or 0.0) - MAX_POLL_GAP_S)


def observe_nodes(  # noqa: PLR0917 - the inputs of an observation
    job_dir: JobDir,
    watches: AttemptCache,
    requests: Sequence[NodeRequest],
    states: Mapping[str, NodeState],
    now: float,
    last_words: Callable[[str], str] = lambda _node: "",
    *,
    stopping: bool = False,
    jobs: int = 1,
) -> list[NodeView]:
    """Return one view per node.

    `states`: must be observed before this call, so that a result is never missed. `now`: monotonic time.
    `last_words`: returns console output to append to the reason of a node that is lost by silence or vanished
    without a result. `stopping`: the nodes were asked to end, so every poll reads them. `jobs`: number of watched
    jobs.
    """
    settled = not stopping and job_dir.folder is None and all(_is_settled(watches, one, states) for one in requests)
    oldest = now - settled_read_s(jobs, len(requests)) if settled else now
    return [
        _look_at(job_dir, watches, request, states.get(request.node), now, oldest, last_words) for request in requests
    ]


def _is_settled(watches: AttemptCache, request: NodeRequest, states: Mapping[str, NodeState]) -> bool:
    """Return whether a node's program runs, according to both its last heartbeat and the target."""
    watch, state = watches.nodes.get(request.node), states.get(request.node)
    if watch is None or state is None or watch.end is not None:
        return False
    return (
        watch.begun
        and not watch.waiting
        and not watch.secrets_key
        and state.phase == "running"
        and not state.restarting
    )


class Reported(NamedTuple):
    """A node's report, from its newest heartbeat."""

    progress: Progress | None
    timeline: Timeline | None


def read_furthest(job_dir: JobDir, attempt: Attempt) -> Reported | None:
    """Return the newest report of the node that has done the most steps; None: no node has reported yet.

    If nodes were replaced, its timeline covers the whole attempt. Raises JobDirError.
    """
    reports = _reports(job_dir, attempt, [request.node for request in every_node(attempt)])
    if not reports:
        return None
    found = furthest(reports)
    return Reported(found.progress, read_whole_timeline(job_dir, attempt) or found.timeline)


def read_whole_timeline(job_dir: JobDir, attempt: Attempt) -> Timeline | None:
    """Return the merged timeline of an attempt whose nodes were replaced. None: no node was replaced, so that each
    node's timeline is complete. Raises JobDirError."""
    if not any(record.kind == "members" for record in attempt.generations):
        return None
    timelines = [
        one.timeline for one in _reports(job_dir, attempt, all_node_names(attempt)) if one.timeline is not None
    ]
    return merge_timelines(timelines) if timelines else None


def _reports(job_dir: JobDir, attempt: Attempt, names: Sequence[str]) -> list[Reported]:
    """Return the reports of these nodes; invalid heartbeats are skipped."""
    found = []
    for name in names:
        with suppress(RecordError):
            found.append(Heartbeat.read(job_dir, node_key(attempt.number, name, "heartbeat.json")))
    return [Reported(progress_of(beat), timeline_of(beat)) for beat in found if beat is not None]


def new_generation(job_dir: JobDir, attempt: Attempt, nodes: Sequence[NodeView] | None) -> Generation | None:
    """Return the next restart in place that is not yet in the attempt's row; one per call, because each is an event.

    If a node has ended, the job dir is read even without a new heartbeat, as the node may have ended before it could
    send one.
    """
    number = len(attempt.generations) + 2
    if nodes is not None and not any(node.generation >= number or node.end is not None for node in nodes):
        return None
    record = read_generation(job_dir, attempt.number, number)
    if record is None or record.kind == "closed":
        return None
    places = {node_without_incarnation(request.node) for request in wanted_nodes(attempt)}
    if not all(node_without_incarnation(node["node"]) in places for node in record.nodes or []):
        log.warning(
            "%s: generation %d of attempt %d names nodes that it has not", attempt.job_id, number, attempt.number
        )
        return None
    return record


def is_closed(job_dir: JobDir, attempt: Attempt) -> bool:
    """Return whether a node has declared that the program will not be started again because it ends or has ended."""
    record = read_generation(job_dir, attempt.number, len(attempt.generations) + 2)
    return record is not None and record.kind == "closed"


def _look_at(  # noqa: PLR0917 - see observe_nodes()
    job_dir: JobDir,
    watches: AttemptCache,
    request: NodeRequest,
    state: NodeState | None,
    now: float,
    oldest: float,
    last_words: Callable[[str], str],
) -> NodeView:
    """Return the view of a node. Records read after `oldest` are not read again. Silence is judged after reading."""
    watch = watches.nodes.setdefault(request.node, NodeCache())
    silent = watch.heard is not None and now - watch.heard >= SILENT_S
    if watch.end is None and (watch.read <= oldest or silent):
        folder = node_key(watches.attempt, request.node, "")
        sequence = _read_heartbeat(job_dir, folder, watch)
        watch.end = _read_end(job_dir, folder, watch, state, last_words)
        watch.read = now
        if state is not None and state.queued:  # a machine in the provider's queue, new or after a loss, is not silent
            watch.heard = None
        elif watch.end is None and state is not None:
            end = _end_by_silence(watch, sequence, now, returns=state.restarting)
            if end is not None:
                watch.end = dataclasses.replace(end, reason=f"{end.reason}{last_words(request.node)}")
    return NodeView(
        node=request.node,
        role=request.role,
        end=watch.end,
        begun=watch.begun,
        progress=watch.progress,
        has_gpus=request.count > 0,
        gpu_idle_s=watch.gpu_idle_s,
        timeline=watch.timeline,
        waiting=watch.waiting,
        reported=watch.reported,
        secrets_key=watch.secrets_key,
        secrets_proof=watch.secrets_proof,
        last_report=watch.last_report,
    )


def _read_heartbeat(job_dir: JobDir, folder: str, watch: NodeCache) -> int:
    """Read the heartbeat, copy it into `watch` and return its sequence number; _MISSING or _UNREADABLE if there is no
    valid one. After an invalid heartbeat, the node counts as silent until the next valid one."""
    try:
        heartbeat = Heartbeat.read(job_dir, f"{folder}heartbeat.json")
    except RecordError as error:
        if str(error) != watch.damage:
            log.warning("a heartbeat is ignored: %s", error)
        watch.reported, watch.damage = True, str(error)
        return _UNREADABLE
    watch.damage = ""
    if heartbeat is None:
        return _MISSING
    watch.reported, watch.last_report = True, heartbeat.time
    watch.progress = progress_of(heartbeat) or watch.progress
    watch.timeline = timeline_of(heartbeat) or watch.timeline
    watch.begun = watch.begun or heartbeat.phase not in ("setup", "waiting")
    watch.secrets_key, watch.secrets_proof = heartbeat.secrets_key, heartbeat.secrets_proof
    watch.waiting = heartbeat.phase == "waiting"
    watch.gpu_idle_s = heartbeat.gpu_idle_s
    watch.silence_s = _silence_s(heartbeat)
    return heartbeat.sequence


def _read_end(
    job_dir: JobDir, folder: str, watch: NodeCache, state: NodeState | None, last_words: Callable[[str], str]
) -> NodeEnd | None:
    try:
        result = Result.read(job_dir, f"{folder}result.json")
    except RecordError as error:
        return NodeEnd("error", f"its result cannot be read: {error}")
    if result is not None:
        watch.progress = progress_of(result) or watch.progress
        watch.timeline = timeline_of(result) or watch.timeline
        watch.last_report = result.ended
        watch.begun = watch.begun or result.outcome == "succeeded"
        return end_by_result(result)
    if state is None or state.phase != "gone":
        return None
    end = end_by_absence(job_dir.exists(f"{folder}notice.json"), state.detail, taken=state.reclaimed)
    refused = None if watch.reported else state.refused
    if end.outcome == "lost" and refused is None:
        reason = _read_reason(job_dir, folder) or last_words(state.node)
        end = dataclasses.replace(end, reason=f"{end.reason}{reason}")
    return dataclasses.replace(end, refused=refused)


def _read_reason(job_dir: JobDir, folder: str) -> str:
    """Return why a machine ended itself without a result, to append to a reason; "" if it left no record."""
    try:
        reason = json.loads(job_dir.find(f"{folder}{GAVE_UP}", most=_MOST_GAVE_UP) or b"{}").get("reason")
    except (RecordError, ValueError, RecursionError, AttributeError):
        return ""
    return f"; it gave up: {reason[:_REASON]}" if isinstance(reason, str) and reason else ""


def _end_by_silence(watch: NodeCache, sequence: int, now: float, *, returns: bool) -> NodeEnd | None:
    """Return the end of a node that sent no new, valid heartbeat within its timeout; None: it has not timed out.

    `sequence`: number of the heartbeat that was just read. `returns`: the provider is restarting the machine, so the
    boot timeout applies until the next heartbeat.
    """
    if watch.heard is None or (sequence not in (watch.sequence, _UNREADABLE)):
        watch.sequence, watch.heard, watch.returning = sequence, now, False
    watch.returning = watch.returning or returns
    patience = BOOT_S if sequence == _MISSING or watch.returning else watch.silence_s
    if now - watch.heard < patience:
        return None
    what = "never reported" if sequence == _MISSING else "has not been heard of"
    damage = f": {watch.damage}" if watch.damage else ""
    return NodeEnd("lost", f"the machine {what} for {patience:.0f} s{damage}")


def _silence_s(heartbeat: Heartbeat) -> float:
    """Return the seconds without a new heartbeat after which a machine is lost."""
    return max(SILENT_S, min(MISSED * heartbeat.next_s, LONGEST_SILENCE_S))
