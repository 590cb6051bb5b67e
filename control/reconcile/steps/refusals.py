"""Handle a refused launch: retry in place, fail over, or end the job (see decisions.py)."""

from __future__ import annotations

from dataclasses import replace

from ....provisioners.base import HasShortage, ProvisionError
from ...store.model import QUEUES
from .. import login_hints
from ..decisions import IN_PLACE_S, search_deadline
from ..node_replacement import wanted_nodes
from ..outcomes import Verdict
from .context import AttemptContext
from .teardown import conclude

_SHUT_OUT = frozenset({"auth", "expired", "invalid"})
"""Errors of credentials and settings, which would also make the termination of machines fail."""


class RefusalHandler:
    """Decides what follows the error of a launch."""

    def __init__(self, context: AttemptContext) -> None:
        self._context = context

    def handle(self, error: ProvisionError, *, first: bool) -> bool:
        """Retry the launch later, or conclude the attempt as refused; return True.

        `first`: the request was not sent before, so no earlier try can have created machines.
        """
        context, attempt = self._context, self._context.attempt
        kind, reason = error.error_class, str(error)
        if error.has_started:
            context.memory.started = attempt.number
        unmade = replace(attempt, launched=None)
        is_unmade = first and not error.may_have_created
        if self._waits_for_login(error, may_exist=not is_unmade):
            return context.wait("expired", login_hints.advice_text(error), unmade if is_unmade else None, "login")
        if kind in ("throttled", "transient") and not self._has_waited():
            return context.wait(kind, reason, at_least_s=error.retry_after or 0.0, counts=not error.is_unsent)
        if kind == "capacity" and self.waits_in_queue():
            return context.wait(kind, reason, unmade, "queue")  # no machine was obtained, so waiting is free
        # If nothing was created, terminating it needs no credentials; see Terminator.
        refused = unmade if is_unmade and kind in _SHUT_OUT else attempt
        refused = replace(refused, cause=kind, scope=error.scope, hints=error.hints)
        return conclude(context, Verdict("refused", reason, None, None), refused)

    def waits_in_queue(self) -> bool:
        """Return whether the attempt waits in the queue of this machine, where requests cost nothing.

        A job that needs GPUs and may run elsewhere does not wait here. A job without GPUs waits for cores: they
        become free soon, and other machines may cost money.
        """
        job, attempt = self._context.job, self._context.attempt
        patience = job.policy.capacity_s
        over = patience is not None and self._context.now - attempt.created >= patience
        if attempt.offer.cloud not in QUEUES or over or attempt.allocation is not None:
            return False
        waits_for_cores = not any(node.accelerator for node in wanted_nodes(attempt))
        return len(job.offers) == 1 or (waits_for_cores and isinstance(self._context.provisioner, HasShortage))

    def _waits_for_login(self, error: ProvisionError, *, may_exist: bool) -> bool:
        """Return whether the launch waits for renewed credentials, within retry.capacity.

        It always waits if machines may exist, as these can only be found with credentials. It does not wait for
        credentials that never worked, or if the job may run in another cloud.
        """
        if not error.is_login or self._context.now >= self._patience_ends():
            return False
        job, cloud = self._context.job, self._context.attempt.offer.cloud
        worked = error.error_class == "expired" or job.state == "recovering"
        return may_exist or (worked and all(offer.cloud == cloud for offer in job.offers))

    def _has_waited(self) -> bool:
        """Return whether to leave a place that does not answer: after IN_PLACE_S, or at the end of retry.capacity if
        there is no other place."""
        if len(self._context.job.offers) == 1:
            return self._context.now >= self._patience_ends()
        return self._context.waited_s >= IN_PLACE_S

    def _patience_ends(self) -> float:
        return search_deadline(self._context.job, self._context.attempts())
