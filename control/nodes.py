"""What is really there of an attempt: the machines as the target sees them, and what they wrote into the job dir."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..provisioners.base import NodeRequest, NodeState
from ..runtime.jobdir import Generation, Heartbeat, JobDir, Result, generation_key, node_key
from .members import every_node, names_ever
from .model import Attempt
from .outcomes import NodeEnd, NodeView, end_by_absence, end_by_result, furthest
from .times import merge_timelines

BOOT_S = 1_200.0
"""A machine that has not reported by then never will; nor will one that its provider has started again."""
SILENT_S = 180.0
"""A machine that reported, and then not for so long, is lost even if the target thinks that it runs."""

LOOK_S = 30.0
"""Of the time between two looks so much counts as silence, at most. Where it is more, nobody could look (a laptop was
shut, and machines that are this laptop were silent themselves); where looks are rare, silence still adds up."""

UNSEEN_S = 600.0
"""A supervisor looks far more often. It is also longer than a machine lasts of which nobody hears any more: its agent
gives up after a minute, and it powers off."""


@dataclass(slots=True)
class Watch:
    """What this process remembers of a node. Only a cache: a new process begins anew and comes to the same."""

    end: NodeEnd | None = None
    """A result is written once and never changes: it is not read again."""
    progress: dict[str, Any] | None = None
    timeline: dict[str, Any] | None = None
    begun: bool = False
    waiting: bool = False
    reported: bool = False
    gpu_idle_s: float | None = None
    sequence: int = -1
    returning: bool = False
    """Since it was last heard of the provider has begun to start it again."""
    heard: float | None = None
    """Steady time of the last sign of life; None: not looked at yet."""
    told_at: float | None = None
    """As in NodeView."""


@dataclass(slots=True)
class Watches:
    """Of one attempt's nodes."""

    attempt: int
    nodes: dict[str, Watch] = field(default_factory=dict)
    looked: float | None = None
    """Steady time of the last look at its machines; None: this process has not looked yet."""
    went_unseen: bool = False
    """Its machines are all gone, and nobody had looked for long when that was seen."""

    def note_look(self, now: float, *, gone: bool) -> None:
        """`now`: steady time; `gone`: all machines are."""
        pause = None if self.looked is None else now - self.looked
        unseen = pause is None or pause > UNSEEN_S
        self.went_unseen, self.looked = gone and (self.went_unseen or unseen), now
        for watch in self.nodes.values():
            if watch.heard is not None:
                watch.heard += max(0.0, (pause or 0.0) - LOOK_S)


def look(  # noqa: PLR0917 - what is known of an attempt
    job_dir: JobDir,
    watches: Watches,
    requests: Sequence[NodeRequest],
    states: Mapping[str, NodeState],
    now: float,
    last_words: Callable[[str], str] = lambda _node: "",
) -> list[NodeView]:
    """One view per node. `states` were observed before this call: so a result is never missed; `now` is steady time;
    `last_words`: of a node that is given up for its silence, to be added to the reason."""
    return [_look_at(job_dir, watches, request, states.get(request.node), now, last_words) for request in requests]


def read_furthest(job_dir: JobDir, attempt: Attempt) -> Heartbeat | None:
    """The newest heartbeat of the node that got furthest; None: there is none yet.

    Its timeline is that of the whole attempt, where nodes have come and gone. Raises JobDirError.
    """
    beats = _beats(job_dir, attempt, [request.node for request in every_node(attempt)])
    if not beats:
        return None
    timeline = read_whole_timeline(job_dir, attempt)
    found = furthest(beats)
    return found if timeline is None else dataclasses.replace(found, timeline=timeline)


def read_whole_timeline(job_dir: JobDir, attempt: Attempt) -> dict[str, Any] | None:
    """Of an attempt whose nodes were changed; None: they were not, so each node's tells all. Raises JobDirError."""
    if not any(record["kind"] == "members" for record in attempt.generations or []):
        return None
    told = [beat.timeline for beat in _beats(job_dir, attempt, names_ever(attempt)) if beat.timeline is not None]
    return merge_timelines(told) if told else None


def _beats(job_dir: JobDir, attempt: Attempt, names: Sequence[str]) -> list[Heartbeat]:
    keys = [node_key(attempt.number, name, "heartbeat.json") for name in names]
    return [Heartbeat.from_bytes(data) for data in map(job_dir.find, keys) if data is not None]


def new_generation(job_dir: JobDir, attempt: Attempt, nodes: Sequence[NodeView] | None) -> Generation | None:
    """The next restart in place that the attempt's row does not tell of yet; one at a time: each is an event.

    A node may have ended before it could beat once more: then the job dir is asked.
    """
    number = len(attempt.generations or []) + 2
    if nodes is not None and not any(node.generation >= number or node.end is not None for node in nodes):
        return None
    data = job_dir.find(generation_key(attempt.number, number))
    record = None if data is None else Generation.from_bytes(data)
    return None if record is None or record.kind == "closed" else record


def is_closed(job_dir: JobDir, attempt: Attempt) -> bool:
    """Whether a node has ended, or will, and has said that the program starts nowhere again."""
    data = job_dir.find(generation_key(attempt.number, len(attempt.generations or []) + 2))
    return data is not None and Generation.from_bytes(data).kind == "closed"


def _look_at(  # noqa: PLR0917 - as look()
    job_dir: JobDir,
    watches: Watches,
    request: NodeRequest,
    state: NodeState | None,
    now: float,
    last_words: Callable[[str], str],
) -> NodeView:
    watch = watches.nodes.setdefault(request.node, Watch())
    if watch.end is None:
        folder = node_key(watches.attempt, request.node, "")
        heartbeat = _read_heartbeat(job_dir, folder, watch)
        watch.end = _read_end(job_dir, folder, watch, state)
        if state is not None and state.queued:  # what has not been got yet is not silent, nor what was lost
            watch.heard = None
        elif watch.end is None and state is not None:
            end = _end_by_silence(watch, heartbeat, now, returns=state.returns)
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
        told_at=watch.told_at,
    )


def _read_heartbeat(job_dir: JobDir, folder: str, watch: Watch) -> Heartbeat | None:
    data = job_dir.find(f"{folder}heartbeat.json")
    if data is None:
        return None
    heartbeat = Heartbeat.from_bytes(data)
    watch.reported, watch.told_at = True, heartbeat.time
    watch.progress = heartbeat.progress or watch.progress
    watch.timeline = heartbeat.timeline or watch.timeline
    watch.begun = watch.begun or heartbeat.phase not in ("setup", "waiting")
    watch.waiting = heartbeat.phase == "waiting"
    watch.gpu_idle_s = heartbeat.gpu_idle_s
    return heartbeat


def _read_end(job_dir: JobDir, folder: str, watch: Watch, state: NodeState | None) -> NodeEnd | None:
    data = job_dir.find(f"{folder}result.json")
    if data is not None:
        result = Result.from_bytes(data)
        watch.progress = result.progress or watch.progress
        watch.timeline = result.timeline or watch.timeline
        watch.told_at = result.ended
        watch.begun = watch.begun or result.outcome == "succeeded"
        return end_by_result(result)
    if state is None or state.phase != "gone":
        return None
    end = end_by_absence(job_dir.exists(f"{folder}notice.json"), state.detail, taken=state.taken)
    return dataclasses.replace(end, refused=None if watch.reported else state.refused)


def _end_by_silence(watch: Watch, heartbeat: Heartbeat | None, now: float, *, returns: bool) -> NodeEnd | None:
    sequence = -1 if heartbeat is None else heartbeat.sequence
    if watch.heard is None or sequence != watch.sequence:
        watch.sequence, watch.heard, watch.returning = sequence, now, False
    watch.returning = watch.returning or returns
    patience = BOOT_S if heartbeat is None or watch.returning else SILENT_S
    if now - watch.heard < patience:
        return None
    what = "never reported" if heartbeat is None else "has not been heard of"
    return NodeEnd("lost", f"the machine {what} for {patience:.0f} s")
