"""A stand-in for pulumi_aws's provider: what cloudgpu's stacks use of it, by boto3 on AWS's stand-in.

    with Aws() as aws:                        # os.environ has aws.environ
        with attached(provider()) as environ: ...

Replace rules and habits are the provider's as its documentation and Terraform's AWS provider, which it wraps, say:

| habit | where |
|---|---|
| EC2's rule that lets everything out is revoked as soon as a security group is made | `network.py` |
| a VPC's default security group is taken over, its rules revoked; deleting leaves it as it is | `network.py` |
| a change of a launch template is a version more; `$Latest` of an instance is looked at once | `machines.py` |
| an Auto Scaling group is brought to zero, then deleted; another template: a refresh of its machines | `machines.py` |
| a role leaves the instance profiles that it is in before it is deleted | `identity.py` |
| a bucket with forceDestroy is emptied first; without, one that is not empty cannot be deleted | `storage.py` |
| documents of policies that mean the same are the same | `identity.py`, `storage.py` |

botocore refuses what the API does not know, moto what it does not allow. Not verified: defaults that are filled in
beside those here, and that a security group's rules are replaced and not changed is the stand-in's own.
"""

from __future__ import annotations

from ..provider import Provider
from . import functions, identity, lookups, machines, network, storage
from .cloud import Cloud

KINDS = (*network.KINDS, *identity.KINDS, *storage.KINDS, *machines.KINDS, *functions.KINDS)


def provider() -> Provider:
    """On the account that the environment points to."""
    return Provider("aws", cloud=Cloud(), kinds=KINDS, invokes=lookups.INVOKES)
