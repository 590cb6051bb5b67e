"""Stand-in for pulumi_aws's provider: the resources of cloudgpu's stacks, implemented with boto3 on AWS's stand-in.

    with Aws() as aws:                        # os.environ has aws.environ
        with attached(provider()) as environ: ...

Replacement rules and behaviour follow the documentation of the provider and of the Terraform AWS provider that it
wraps:

| behaviour | where |
|---|---|
| the allow-all egress rule of a new security group is revoked immediately | `network.py` |
| a VPC's default security group is adopted, its rules revoked; a delete leaves it unchanged | `network.py` |
| a change of a launch template adds a version; an instance resolves `$Latest` only when created | `machines.py` |
| an Auto Scaling group is scaled to zero, then deleted; a new template starts an instance refresh | `machines.py` |
| a role is removed from its instance profiles before it is deleted | `identity.py` |
| a bucket with forceDestroy is emptied first; a non-empty one without it cannot be deleted | `storage.py` |
| policy documents with the same meaning are equal | `identity.py`, `storage.py` |

botocore rejects fields unknown to the API, moto rejects forbidden values. Not verified: other defaults than the ones
here. Unlike the provider, the stand-in replaces a security group's rules instead of changing them.
"""

from __future__ import annotations

from ..provider import Provider
from . import functions, identity, lookups, machines, network, storage
from .cloud import Cloud

KINDS = (*network.KINDS, *identity.KINDS, *storage.KINDS, *machines.KINDS, *functions.KINDS)


def provider() -> Provider:
    """Return a provider for the account that the environment points to."""
    return Provider("aws", cloud=Cloud(), kinds=KINDS, invokes=lookups.INVOKES)
