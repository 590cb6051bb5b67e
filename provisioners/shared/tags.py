"""Names of the tags (labels) on everything that is made in a cloud: one set for all clouds.

Lower case letters and `-` only, which AWS, Google Cloud and Azure all allow in a key. Values are text; who reads them
must expect that somebody has changed them.
"""

from __future__ import annotations

from ..base import LaunchRequest, NodeRequest

OWNER = "cloudgpu-owner"
JOB = "cloudgpu-job"
ATTEMPT = "cloudgpu-attempt"
TOKEN = "cloudgpu-token"  # noqa: S105 - a name
"""Of the launch, as in Allocation.token."""
EXPIRES = "cloudgpu-expires"
"""Epoch seconds, whole, after which anybody may remove it; absent: never."""
ROLE = "cloudgpu-role"
INDEX = "cloudgpu-index"
RANK = "cloudgpu-rank"
NODE = "cloudgpu-node"
"""As in NodeRequest.node."""
STACK = "cloudgpu-stack"
"""Name of the Pulumi stack that made it, and that removes it: launches and gc leave it alone."""
FLEET = "cloudgpu-fleet"
"""FleetSpec.name, on a fleet's group and on its machines."""


def launch_tags(request: LaunchRequest) -> dict[str, str]:
    """Of everything made for a launch."""
    tags = {
        OWNER: request.owner.name,
        JOB: request.job_id,
        ATTEMPT: str(request.attempt),
        TOKEN: request.token,
    }
    return tags if request.expires is None else {**tags, EXPIRES: str(int(request.expires))}


def attempt_of(text: str) -> int:
    """Return the value of the tag ATTEMPT; 0: there is none, or it was changed."""
    return int(text) if text.isdecimal() else 0


def node_tags(request: LaunchRequest, node: NodeRequest) -> dict[str, str]:
    """Of a machine, and of all that is made with it."""
    return {
        **launch_tags(request),
        ROLE: node.role,
        INDEX: str(node.index),
        RANK: str(node.rank),
        NODE: node.node,
    }


def stack_tags(owner: str, stack: str, expires: float | None = None, fleet: str = "") -> dict[str, str]:
    """Of everything a Pulumi stack makes; `fleet`: of what belongs to one."""
    tags = {OWNER: owner, STACK: stack, **({FLEET: fleet} if fleet else {})}
    return tags if expires is None else {**tags, EXPIRES: str(int(expires))}
