"""Launch of an attempt: copy the job dir to the target's cloud, write the records for its machines, request them."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import asdict, replace

from ....jobspecs.targets import info
from ....protocol.jobdir import JOB_KEY, AttemptRecord, RecordError, attempt_key, read_job
from ....provisioners.base import HasShortage, NodeRequest, ProvisionError
from ....provisioners.shared.accounts import OTHER_ACCOUNT
from ....provisioners.shared.api_calls import LaunchInterruptedError, interruptible
from ....runtime.migration import AllDamagedError
from ...errors import StoreError
from ..decisions import left_in_place, wanted_end
from ..earlier_attempts import earlier_history
from ..node_replacement import node_records, wanted_nodes
from ..outcomes import Verdict
from .context import AttemptContext
from .launch_request import launch_request
from .migration import CloudMigrator
from .refusals import RefusalHandler
from .secrets import SecretSender
from .teardown import conclude


class Launcher:
    """Takes the step of an attempt that is launching."""

    def __init__(self, context: AttemptContext) -> None:
        self._context = context
        self._refusals = RefusalHandler(context)
        self._migrator = CloudMigrator(context)

    def take(self) -> bool:
        """Prepare the launch, then request machines; return whether anything changed."""
        context = self._context
        end = wanted_end(context.job, context.attempt, context.now)
        if end is not None:
            return context.begin_stop(end.cause, end.reason)
        if context.now < context.job.not_before:
            return False
        if context.attempt.launched is None:
            waits = SecretSender(context).wait_before_launch()
            if waits is None:
                waits = self._wait_for_turn()
            return self._prepare() if waits is None else waits
        return self._launch()

    def _launch(self) -> bool:
        context, attempt, memory = self._context, self._context.attempt, self._context.memory
        first, memory.first_launch_of = memory.first_launch_of == attempt.number, 0
        try:
            request = launch_request(context, wanted_nodes(attempt), repeated=not first)
            with interruptible(self._is_unwanted):
                allocation = context.provisioner.launch(request)
        except LaunchInterruptedError:
            return True  # the next step terminates what was created
        except ProvisionError as error:
            if error.code == OTHER_ACCOUNT:
                raise
            return self._refusals.handle(error, first=first)
        job = replace(context.job, state="starting", round=0, waits=0, not_before=0.0, cause="", reason="")
        # No machine existed during the earlier waits, so they are not paid time.
        launched = context.now if context.job.waits and allocation.is_fresh else attempt.launched
        attempt = replace(attempt, state="running", allocation=allocation, launched=launched)
        group = ", as a group that replaces lost machines" if request.grouped else ""
        return context.write("launched", f"launched on {attempt.offer.label}{group}", job=job, attempt=attempt)

    def _wait_for_turn(self) -> bool | None:
        """Wait in the target's queue if it has one. Return whether anything changed; None: the job may launch."""
        context = self._context
        provisioner = context.provisioner
        if not isinstance(provisioner, HasShortage):
            return None
        turn = context.tools.queue.place(context.job.id, context.now)
        short = provisioner.shortage(wanted_nodes(context.attempt), turn.ahead)
        if not short:
            return None
        if not self._refusals.waits_in_queue():
            return self._refuse(short)
        context.memory.pause_s = turn.pause_s
        if context.job.reason == short:
            return False
        return context.write("waiting", f"waiting: {short}", job=replace(context.job, cause="capacity", reason=short))

    def _refuse(self, message: str) -> bool:
        """Handle a lack of capacity that was found before machines were requested, like a refusal. Returns True."""
        return self._refusals.handle(ProvisionError("capacity", message), first=True)

    def _is_unwanted(self) -> bool:
        """Return whether the job was cancelled or reached a limit since the step began. Called within launch()."""
        context = self._context
        with contextlib.suppress(StoreError):
            job = context.tools.store.job(context.job.id)
            return job is not None and wanted_end(job, context.attempt, context.time()) is not None
        return False

    def _prepare(self) -> bool:
        """Write the records for the machines, and then the attempt's row with the start of the paid time. Returns True,
        also if the attempt was refused or failed instead."""
        context = self._context
        context.memory.first_launch_of = context.attempt.number
        if self._reprice():
            return True
        try:
            message = self._migrator.move_in()
        except AllDamagedError as error:
            return self._fail(str(error))
        context.now = context.time()  # copying may have taken hours, and paid time begins now
        if message is None or (message and self._reprice()):
            return True
        if damage := self._damage():
            return self._fail(damage)
        wanted, itself = wanted_nodes(context.attempt), context.heals_itself
        replaces = not itself and len(wanted) > 1 and info(context.attempt.offer.cloud).replaces_nodes
        if (elsewhere := self._describe(wanted, heals=replaces or itself)) is not None:
            return self._fail(f"{elsewhere} was written by another process")
        return self._announce(message, wanted if replaces else None)

    def _fail(self, reason: str) -> bool:
        return conclude(self._context, Verdict("error", reason, None, None))

    def _damage(self) -> str:
        """Return how the run's job.json differs from the submitted one; "": it does not."""
        job_dir, sha256 = self._context.job_dir, self._context.job.job_sha256
        try:
            found = read_job(job_dir, sha256)
        except RecordError:  # not a valid record
            found = b""
        if found is None:
            return f"{job_dir.url}/{JOB_KEY} is missing"
        if hashlib.sha256(found).hexdigest() != sha256:
            return f"{job_dir.url}/{JOB_KEY} is not the one that was submitted"
        return ""

    def _announce(self, message: str, nodes: tuple[NodeRequest, ...] | None) -> bool:
        """Write the attempt's row before machines are requested: start of paid time, account, nodes. Returns True."""
        context = self._context
        account = context.attempt.account
        if account is None:
            try:
                account = context.provisioner.account()
            except ProvisionError as error:
                return self._refusals.handle(error, first=True)
        attempt = replace(context.attempt, launched=context.now, nodes=nodes, account=account)
        return context.write("moved", message, attempt=attempt)

    def _reprice(self) -> bool:
        """Write the price if it has changed since the last query or the plan; return whether the step is over."""
        context, attempt = self._context, self._context.attempt
        price = context.provisioner.price(attempt.offer)
        if price is None or price == attempt.price:
            return False
        most = context.job.policy.price_usd
        if most is not None and price > most:
            return self._refuse(f"{attempt.offer.label} costs {price} USD/h now, more than limits.price, {most} USD/h")
        planned = "unknown" if attempt.price is None else f"{attempt.price} USD/h"
        message = f"attempt {attempt.number} costs {price} USD/h now; planned: {planned}"
        return context.write("price", message, attempt=replace(attempt, price=price))

    def _describe(self, wanted: Sequence[NodeRequest], *, heals: bool) -> str | None:
        """Write attempt.json, also into the job dir of the last attempt: its machines and readers see that the job
        moved. Return None, or the URL of a different attempt.json that another writer has created."""
        context, attempt = self._context, self._context.attempt
        left, here = self._migrator.left_dir(), context.job_dir.url
        attempts = context.attempts()
        tries = left_in_place(context.job.policy, context.job.in_run(attempts))
        record = AttemptRecord(
            attempt=attempt.number,
            offer=attempt.offer.to_json(),
            nodes=[asdict(node) for node in node_records(wanted)],
            failures_left=tries.failures,
            interruptions_left=tries.interruptions,
            heals=heals,
            job_dir=here if left != here else "",
            earlier=earlier_history(attempts),
            progress_since=context.job.run.progress_since,
        )
        key, content = attempt_key(attempt.number), record.to_bytes()
        places = dict.fromkeys((left, here))
        return next((f"{url}/{key}" for url in places if not context.open_dir(url).create(key, content)), None)
