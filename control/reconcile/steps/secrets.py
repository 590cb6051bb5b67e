"""Send a job's secrets to its machines, and wait for them where the supervisor does not have the values."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ....protocol.jobdir import JobDirError, node_key
from ....protocol.sealed_secrets import BOX_PREFIX, BoxError, Recipient, seal
from ...errors import SourceError
from ..node_replacement import all_node_names
from ..outcomes import NodeView
from .context import AttemptContext

log = logging.getLogger("cloudgpu.supervisor")

CAUSE = "secrets"
"""Cause of a job that waits for values of its secrets."""
_PAID = "is paid for meanwhile"
"""Part of the reason of a job whose machines wait for values."""
_AGAIN_S = 15.0
"""Seconds after which a box is written again for a node that still asks: another program may have replaced it."""
_POLL_S = 2.0
"""Seconds between two polls of a job that waits without machines; a command that gives the values wakes it."""


class SecretSender:
    """Sends the secrets that only this computer can read."""

    def __init__(self, context: AttemptContext) -> None:
        self._context = context
        self._sources = context.job.policy.secrets
        self._computer = context.job.policy.secrets_from

    def missing(self) -> str:
        """Return why the values cannot be sent, and what to do; "": they can, or the job has no such secrets."""
        if not self._sources:
            return ""
        why = self._context.tools.vault.missing(self._context.job.id, self._sources, self._computer)
        return f"{why}. Give them: `cloudgpu secrets provide {self._context.job.id}`" if why else ""

    def wait_before_launch(self) -> bool | None:
        """Wait for the values before machines cost money; None: they are here. Other jobs may pass this one."""
        context = self._context
        why = self.missing()
        if not why:
            return None
        context.memory.pause_s = _POLL_S
        context.memory.is_passed = True
        context.tools.queue.skip(context.job.id)
        reason = f"waiting for its secrets, without machines: {why}"
        if context.job.reason == reason:
            return False
        return context.write("waiting", reason, job=replace(context.job, cause=CAUSE, reason=reason))

    def send(self, nodes: Sequence[NodeView]) -> bool:
        """Send the values to the nodes that ask for them; return whether anything changed in the store."""
        if not self._sources:
            return False
        asking = self._asking(nodes)
        if not asking:
            return self._is_over(nodes) and self._note("", "")
        try:
            values = self._context.tools.vault.take(self._context.job.id, self._sources, self._computer)
        except SourceError:
            waiting = f"{_names(asking)} waits for its secrets, and {_PAID}, at most 30 min: "
            return self._note(waiting, self.missing())
        known = set(self._context.memory.sent_secrets)  # an agent that downloads its inputs has not read its box yet
        sent = [one for one in asking if self._write_box(one, values) and one.key not in known]
        job = replace(self._context.job, cause="", reason="") if self._context.job.cause == CAUSE else None
        return bool(sent) and self._context.write("secrets", f"secrets sent to {_names(sent)}", job=job)

    def _write_box(self, recipient: Recipient, values: Mapping[str, str]) -> bool:
        """Encrypt values to an agent; return False if its key is invalid."""
        context = self._context
        box = None
        try:
            box = seal(recipient, values, self._pass)
        except BoxError as error:
            log.warning("%s: %s", context.job.id, error)
        if box is not None:
            context.job_dir.put(recipient.box_key, box)
        context.memory.sent_secrets[recipient.key] = context.tools.clock.monotonic()
        return box is not None

    def remove_boxes(self) -> None:
        """Delete the remaining boxes of an attempt whose machines are gone; no agent can open them any more."""
        if not self._sources:
            return
        context = self._context
        for node in all_node_names(context.attempt):
            try:
                for name in context.job_dir.files(node_key(context.attempt.number, node, "")):
                    if name.startswith(BOX_PREFIX):
                        context.job_dir.delete(node_key(context.attempt.number, node, name))
            except JobDirError as error:
                log.warning("%s: encrypted secrets of %s could not be removed: %s", context.job.id, node, error)
                return

    @property
    def _pass(self) -> str:
        return self._context.secrets_pass

    def _asking(self, nodes: Sequence[NodeView]) -> list[Recipient]:
        """Return the agents that ask for the values, prove that they are the job's, and were not answered yet."""
        context, found = self._context, []
        now = context.tools.clock.monotonic()
        for node in nodes:
            if node.end is not None or not node.secrets_key:
                continue
            recipient = Recipient(context.job.id, context.attempt.number, node.node, node.secrets_key)
            if now - context.memory.sent_secrets.get(node.secrets_key, float("-inf")) < _AGAIN_S:
                continue
            if recipient.is_proved_by(node.secrets_proof, self._pass):
                found.append(recipient)
            elif node.secrets_key not in context.memory.refused_keys:
                context.memory.refused_keys.add(node.secrets_key)
                message = f"{node.node} asks for secrets without the proof that it is this job's machine: refused"
                log.warning("%s: %s", context.job.id, message)
                context.tools.store.add_event(context.job, "trouble", message, context.time())
        return found

    def _is_over(self, nodes: Sequence[NodeView]) -> bool:
        """Return whether the job's reason still says that a machine waits, although none does."""
        job = self._context.job
        waits = job.cause == CAUSE and _PAID in job.reason
        return waits and not any(node.secrets_key for node in nodes if node.end is None)

    def _note(self, waiting: str, why: str) -> bool:
        """Write why the job waits into its reason; return whether that is new."""
        reason = f"{waiting}{why}"
        if self._context.job.reason == reason:
            return False
        job = replace(self._context.job, cause=CAUSE if reason else "", reason=reason)
        return self._context.write("waiting", reason, job=job)


def _names(recipients: Sequence[Recipient]) -> str:
    return ", ".join(sorted(one.node for one in recipients))
