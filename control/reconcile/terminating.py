"""Terminate the machines of a concluded attempt, and write what it has cost when all are gone."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from ...provisioners.base import Allocation, Ended, ProvisionError
from ...provisioners.shared.accounts import ACCOUNT
from ..accounting import cost
from .context import AttemptContext

_UNKNOWN = Ended(has_started=False)
"""Result for a target whose terminate() reports nothing."""


class Terminator:
    """Takes the step of an attempt that is terminating."""

    def __init__(self, context: AttemptContext) -> None:
        self._context = context

    def take(self) -> bool:
        """Terminate what there is; write the end when all is gone. Return whether anything changed."""
        context, attempt = self._context, self._context.attempt
        ended = self._release()
        if ended is None:
            return False
        has_started = ended.has_started or context.memory.started == attempt.number
        known = None if ended is _UNKNOWN else has_started
        if cost.was_free(attempt, has_started=known, grouped=context.is_group):
            attempt = replace(attempt, launched=None)
        now = context.time()
        gone = now if ended.at is None else min(now, max(ended.at, context.attempt.launched or 0.0))
        charged = cost.attempt_cost(replace(attempt, ended=gone), now)
        before = context.job.spent
        spent = None if before is None or charged is None else before + charged
        return context.write(
            "ended",
            "all machines are gone",
            job=replace(context.job, spent=spent, not_before=0.0),
            attempt=replace(attempt, state="ended", ended=now, cost=charged),
        )

    def _release(self) -> Ended | None:
        """Terminate what there is of an attempt; None: it is not all gone yet."""
        if self._context.attempt.launched is None:
            return Ended(has_started=False)  # nothing was ever made
        allocation, provisioner = self._allocation(), self._context.provisioner
        try:
            ended = provisioner.terminate(allocation)
        except ProvisionError:
            self._fix_cost()
            raise
        is_gone = all(state.phase == "gone" for state in provisioner.observe(allocation))
        return (ended or _UNKNOWN) if is_gone else None

    def _fix_cost(self) -> None:
        """Write what the attempt has cost, if its machines are gone and only the rest could not be removed."""
        context, attempt = self._context, self._context.attempt
        allocation = attempt.allocation
        if allocation is None or attempt.cost is not None or not allocation.machines:
            return
        with contextlib.suppress(ProvisionError):
            if all(state.phase == "gone" for state in context.provisioner.observe(allocation)):
                now = context.time()
                charged = cost.attempt_cost(replace(attempt, ended=now), now)
                context.write("", "", attempt=replace(attempt, cost=charged))

    def _allocation(self) -> Allocation:
        """Return what is to be terminated.

        If the answer of the launch was lost, token and region are enough: the whole account, with everything that its
        other jobs have, need not be searched for each place that has no machines.
        """
        job, attempt = self._context.job, self._context.attempt
        if attempt.allocation is not None:
            return attempt.allocation
        details = {"region": attempt.offer.region, "owner": job.owner}
        details |= {ACCOUNT: attempt.account} if attempt.account else {}
        return Allocation(attempt.offer.cloud, job.id, attempt.number, attempt.token, {}, details)
