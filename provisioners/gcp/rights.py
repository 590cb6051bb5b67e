"""Compare the caller's permissions with those that cloudgpu needs, by the methods testIamPermissions.

Source: references of Resource Manager (projects.testIamPermissions), IAM (serviceAccounts.testIamPermissions) and Cloud
Storage (buckets.testIamPermissions): each returns those of the given permissions that the caller has. They need no
permission. Compute Engine has none for a project.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..base import ProvisionError
from ..checks.results import CheckResult
from ..checks.rights import compare, needs
from .rest import Rest

PERMISSIONS = Path(__file__).with_name("permissions.csv")
PAGE = "docs/reference/gcp-permissions.md"
_MOST = 100
"""Maximum number of permissions in one request (Resource Manager)."""
_WHO = "these credentials"


def check_project(rest: Rest, sets: Sequence[str]) -> Iterator[CheckResult]:
    """Yield which permissions of these sets the caller lacks in the project. Raises ProvisionError."""
    wanted = [one for one in needs(PERMISSIONS) if one.set in sets]
    names = list(dict.fromkeys(one.permission for one in wanted))
    held: set[str] = set()
    for at in range(0, len(names), _MOST):
        body = {"permissions": names[at : at + _MOST]}
        path, doing = "v1/projects/{project}:testIamPermissions", "ask for your permissions in the project"
        held |= _held(rest.post("cloudresourcemanager", path, doing, body))
    missing = [one for one in wanted if one.permission not in held]
    yield from compare(wanted, missing, page=PAGE, who=_WHO)


def check_service_accounts(rest: Rest, emails: Sequence[str]) -> Iterator[CheckResult]:
    """Yield whether the caller may give these accounts to machines. Raises ProvisionError."""
    wanted = [one for one in needs(PERMISSIONS) if one.set == "machines"]
    body = {"permissions": [one.permission for one in wanted]}
    for email in emails:
        path = f"v1/projects/{{project}}/serviceAccounts/{email}:testIamPermissions"
        try:
            answer = rest.post("iam", path, f"ask for your permissions on {email}", body)
        except ProvisionError as error:
            if error.status != 404:
                raise
            fix = f"`gcloud iam service-accounts create {email.partition('@')[0]}`, see {PAGE}; or `cloudgpu infra up`"
            yield CheckResult("rights", "error", f"the machines' service account {email} is not there", fix)
            continue
        missing = [one for one in wanted if one.permission not in _held(answer)]
        if missing:
            yield from compare(wanted, missing, page=PAGE, who=f"on {email}, {_WHO}")


def check_bucket(rest: Rest, bucket: str) -> Iterator[CheckResult]:
    """Yield which permissions the caller lacks in a bucket. Raises ProvisionError."""
    wanted = [one for one in needs(PERMISSIONS) if one.set == "job_dir"]
    names = [one.permission for one in wanted]
    path = f"storage/v1/b/{bucket}/iam/testPermissions"
    answer = rest.get("storage", path, f"ask for your permissions in {bucket}", permissions=names)
    missing = [one for one in wanted if one.permission not in _held(answer)]
    yield from compare(wanted, missing, page=PAGE, who=_WHO, subject="job_dir")


def _held(answer: Mapping[str, Any]) -> set[str]:
    """Return the permissions in an answer, which has no field for none."""
    listed = answer.get("permissions")
    return set(map(str, listed)) if isinstance(listed, list) else set()
