"""Build the request of an attempt's launch, including the maximum lifetime of its machines."""

from __future__ import annotations

from ....jobspecs.targets import info
from ....provisioners.base import LaunchRequest, NodeRequest, Owner
from ...accounting import cost
from ...submit.upload import agent_for
from ..decisions import GRACE_S
from .context import AttemptContext

LATE_S = 5.0
"""Seconds after a stop's deadline in which nodes that kill their program at the deadline may report it."""
LONGEST_S = 30 * 86_400.0
"""Maximum lifetime in seconds of a cloud machine, which then ends even without a supervisor. A job that still runs
continues on another machine."""
EXPIRY_S = 3_600.0
"""Seconds from the self-termination of the machines until any supervisor may remove their resources."""
QUEUE_S = {"flex-start": 86_400.0}
"""Market -> maximum seconds that its machines wait in the provider's queue. Their lifetime begins after this wait."""


def launch_request(
    context: AttemptContext, nodes: tuple[NodeRequest, ...], *, replaces: bool = False, repeated: bool = False
) -> LaunchRequest:
    """Return the request for the attempt's machines.

    `replaces`: some of the nodes replace lost ones. `repeated`: the request may have been sent before.
    """
    job, attempt = context.job, context.attempt
    offer, lifetime = attempt.offer, _lifetime(context)
    return LaunchRequest(
        job_id=job.id,
        attempt=attempt.number,
        token=attempt.token,
        owner=Owner(job.owner),
        job_dir=job.dir_on(offer.cloud),
        job_sha256=job.job_sha256,
        region=offer.region,
        zone=offer.zone,
        market=offer.market,
        disk_gb=offer.disk_gb,
        nodes=nodes,
        lifetime_s=lifetime,
        expires=None if lifetime is None else _expires(context, lifetime, replaces=replaces),
        agent=agent_for(offer, job.policy.agents),
        reads=tuple(job.reads_on(offer.cloud)),
        secrets=tuple(job.policy.references),
        images=dict(job.policy.images),
        grouped=context.is_group,
        account=attempt.account or "",
        secrets_pass=context.secrets_pass,
        may_be_retry=repeated,
    )


def _expires(context: AttemptContext, lifetime_s: int, *, replaces: bool) -> float | None:
    """Return the epoch seconds after which any supervisor may remove the machines; all have ended by then.

    The lifetime of a replacement starts anew. The result is rounded up to whole lifetimes since the attempt's
    launch, because repeated launches must send an equal request.
    """
    if (begun := context.attempt.launched) is None:
        return None
    lives = 2 + (context.now - begun) // lifetime_s if replaces else 1
    return begun + QUEUE_S.get(context.attempt.offer.market, 0.0) + lives * lifetime_s + EXPIRY_S


def _lifetime(context: AttemptContext) -> int | None:
    """Return the seconds after which a machine terminates itself: the job's limits plus the time to stop; None: never.

    It is equal for every retry of a launch: a provider that knows the token refuses a different request.
    """
    job, attempt = context.job, context.attempt
    begun = attempt.created if attempt.launched is None else attempt.launched
    lives = [] if info(attempt.offer.cloud).is_here else [LONGEST_S]
    if job.policy.duration_s is not None:
        lives.append(job.begun + job.policy.duration_s - begun + GRACE_S["duration"])
    if job.policy.cost_usd is not None and attempt.price is not None and job.spent is not None:
        left = cost.seconds_left(job.policy.cost_usd, job.spent - job.run.spent_before, attempt.price)
        lives += [] if left is None else [left]
    return max(1, round(min(lives) + LATE_S)) if lives else None
