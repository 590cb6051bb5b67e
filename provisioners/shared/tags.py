"""Names of the tags (labels) on all resources created in a cloud; one set for all clouds.

They consist of lower case letters and `-`, which AWS, Google Cloud and Azure all allow in a key. Values are text;
readers must expect that users have changed them.
"""

from __future__ import annotations

from ..base import LaunchRequest, NodeRequest

OWNER = "cloudgpu-owner"
JOB = "cloudgpu-job"
ATTEMPT = "cloudgpu-attempt"
TOKEN = "cloudgpu-token"  # noqa: S105 - a name
"""Key of the tag with the launch token (Allocation.token)."""
EXPIRES = "cloudgpu-expires"
"""Key of the tag with the epoch second after which any user may delete the resource; absent: never."""
ROLE = "cloudgpu-role"
INDEX = "cloudgpu-index"
RANK = "cloudgpu-rank"
NODE = "cloudgpu-node"
"""Key of the tag with NodeRequest.node."""
STACK = "cloudgpu-stack"
"""Key of the tag with the name of the Pulumi stack that created the resource and will delete it; launches and gc ignore
such resources."""
FLEET = "cloudgpu-fleet"
"""Key of the tag with FleetSpec.name, on a fleet's group and on its machines."""


def launch_tags(request: LaunchRequest) -> dict[str, str]:
    """Return the tags of every resource created for a launch."""
    tags = {
        OWNER: request.owner.name,
        JOB: request.job_id,
        ATTEMPT: str(request.attempt),
        TOKEN: request.token,
    }
    return tags if request.expires is None else {**tags, EXPIRES: str(int(request.expires))}


def attempt_of(text: str) -> int:
    """Parse the value of the tag ATTEMPT; 0 if it is missing or invalid."""
    return int(text) if text.isdecimal() else 0


def node_tags(request: LaunchRequest, node: NodeRequest) -> dict[str, str]:
    """Return the tags of a node's machine, and of resources created with it."""
    return {
        **launch_tags(request),
        ROLE: node.role,
        INDEX: str(node.index),
        RANK: str(node.rank),
        NODE: node.node,
    }


def stack_tags(owner: str, stack: str, expires: float | None = None, fleet: str = "") -> dict[str, str]:
    """Return the tags of a Pulumi stack's resources. `fleet`: name of the fleet that a resource belongs to."""
    tags = {OWNER: owner, STACK: stack, **({FLEET: fleet} if fleet else {})}
    return tags if expires is None else {**tags, EXPIRES: str(int(expires))}
