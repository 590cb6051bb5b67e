"""States of jobs and attempts, and all permitted transitions, which are checked at each write.

docs/explanation/control.md shows the same table; tests/unit/test_states.py compares them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Transition:
    """A permitted change of state."""

    old: str
    new: str
    when: str


JOB_STATES = {
    "queued": "waits for the first machines of its run",
    "starting": "machines were got; the program does not run yet",
    "running": "the program runs on at least one node",
    "recovering": "was interrupted; waits for new machines",
    "stopping": "shall end: programs may save, then everything is terminated",
    "succeeded": "every node's program ended with 0 (final)",
    "failed": "ended by an error that no retry is left for (final)",
    "cancelled": "ended by its user (final)",
    "stopped": "ended by its own limits: duration, cost or idle GPUs (final)",
}
JOB_END = frozenset({"succeeded", "failed", "cancelled", "stopped"})

JOB_TRANSITIONS = (
    Transition("queued", "starting", "launch() answered with the machines"),
    Transition("queued", "stopping", "cancelled, or a limit reached, while machines are asked for"),
    Transition("queued", "failed", "no offer can be launched, or the job dir is unusable"),
    Transition("queued", "cancelled", "cancelled before any attempt"),
    Transition("queued", "stopped", "a limit reached before any attempt"),
    Transition("starting", "running", "a node reports that its program runs, or how it ended"),
    Transition("starting", "recovering", "the machines were lost or failed, and a retry is left"),
    Transition("starting", "stopping", "cancelled, or a limit reached"),
    Transition("starting", "failed", "the machines were lost or failed, and no retry is left"),
    Transition("running", "recovering", "the attempt was interrupted or failed, and a retry is left"),
    Transition("running", "stopping", "cancelled, or a limit reached"),
    Transition("running", "succeeded", "every node succeeded"),
    Transition("running", "failed", "the attempt failed, and no retry is left"),
    Transition("running", "cancelled", "cancelled when the attempt was about to end anyway"),
    Transition("running", "stopped", "a limit reached when the attempt was about to end anyway"),
    Transition("starting", "cancelled", "cancelled when the attempt was about to end anyway"),
    Transition("starting", "stopped", "a limit reached when the attempt was about to end anyway"),
    Transition("recovering", "starting", "launch() answered with the machines"),
    Transition("recovering", "stopping", "cancelled, or a limit reached, while machines are asked for"),
    Transition("recovering", "failed", "no offer can be launched any more, or the job dir is unusable"),
    Transition("recovering", "cancelled", "cancelled between two attempts"),
    Transition("recovering", "stopped", "a limit reached between two attempts"),
    Transition("stopping", "cancelled", "all machines are gone; the user wanted it"),
    Transition("stopping", "stopped", "all machines are gone; a limit wanted it"),
    Transition("stopping", "succeeded", "every node had succeeded before it could be stopped"),
)

JOB_RESUMPTIONS = tuple(
    Transition(state, "queued", "`cloudgpu resume` begins a further run") for state in sorted(JOB_END)
)
"""Transitions out of final states: only a command makes them, never a supervisor."""

ATTEMPT_STATES = {
    "launching": "written down before machines are asked for, with its token and its price",
    "running": "the machines are known",
    "stopping": "its nodes were asked to end (stop.json) and have until the deadline",
    "terminating": "its outcome is known; the machines are being terminated",
    "ended": "every machine was seen to be gone (final)",
}
ATTEMPT_END = frozenset({"ended"})

ATTEMPT_TRANSITIONS = (
    Transition("launching", "running", "launch() answered with the machines"),
    Transition("launching", "stopping", "cancelled, or a limit reached"),
    Transition("launching", "terminating", "launch() was refused, or the job dir is unusable"),
    Transition("running", "stopping", "cancelled, a limit reached, or a node ended and its peers must too"),
    Transition("running", "terminating", "every node ended, or the job dir stayed unusable"),
    Transition("stopping", "terminating", "every node ended, or the deadline passed"),
    Transition("terminating", "ended", "terminate() returned and observe() says that all are gone"),
)

OUTCOMES = {
    "succeeded": "every node's program ended with 0",
    "failed": "the program or its setup failed by itself",
    "preempted": "the provider took a machine, and had said so",
    "again": "the program asks to be run again (exit codes 75 to 77)",
    "lost": "a machine vanished, or fell silent, without a notice",
    "stopped": "it ended on request",
    "error": "cloudgpu itself could not go on: bad job dir, unsafe archive ...",
    "refused": "the target gave no machines",
}


class IllegalTransitionError(RuntimeError):
    """A bug: an attempted change of state that is not in the table."""


_JOB_MOVES = frozenset((move.old, move.new) for move in JOB_TRANSITIONS)
_RESUMPTIONS = frozenset((move.old, move.new) for move in JOB_RESUMPTIONS)
_ATTEMPT_MOVES = frozenset((move.old, move.new) for move in ATTEMPT_TRANSITIONS)


def check_job(old: str, new: str) -> None:
    """Raise IllegalTransitionError unless the change is permitted. A job may stay in any state that is not final."""
    _check("job", old, new, _JOB_MOVES, JOB_END)


def check_resumption(old: str, new: str) -> None:
    """Raise IllegalTransitionError unless a further run may begin so."""
    _check("job", old, new, _RESUMPTIONS, JOB_END)


def check_attempt(old: str, new: str) -> None:
    """Like check_job(), for an attempt."""
    _check("attempt", old, new, _ATTEMPT_MOVES, ATTEMPT_END)


def _check(what: str, old: str, new: str, moves: frozenset[tuple[str, str]], final: frozenset[str]) -> None:
    if (old, new) not in moves and (old != new or old in final):
        raise IllegalTransitionError(f"a {what} cannot go from {old} to {new}")
