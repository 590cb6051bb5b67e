"""Compare the caller's IAM permissions with those that cloudgpu needs.

IAM simulates the caller's policies (iam:SimulatePrincipalPolicy), with permissions boundaries and service control
policies, but without policies of resources. Where the caller may not ask for that, EC2's DryRun answers for a part.
Source: IAM API reference, SimulatePrincipalPolicy; EC2 API reference, parameter DryRun.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..base import ProvisionError
from ..checks.results import CheckResult, one_line, parsing
from ..checks.rights import Need, compare, needs
from ..shared.api_calls import with_context
from ..shared.infra_outputs import Infrastructure
from ..shared.tags import OWNER
from .clients import Clients
from .errors import translate_errors
from .machine.images import Images
from .resources.identity import BOUNDARY_VARIABLE

if TYPE_CHECKING:
    from types_boto3_iam.type_defs import ContextEntryTypeDef

PERMISSIONS = Path(__file__).with_name("permissions.csv")
PAGE = "docs/reference/aws-permissions.md"
_NAME = "cloudgpu-check"
"""Owner of the simulated resources: policies are limited to names that begin with `cloudgpu-`."""
_AT_ONCE = 6
_DRY_RUN_TYPE = "g4dn.xlarge"
_MADE = ("instance", "volume", "network-interface")
_MOST_ACTIONS = 50


class _Question(NamedTuple):
    """Permissions that are simulated in one call."""

    needs: tuple[Need, ...]
    resources: tuple[str, ...]
    created_by: str
    """Value of ec2:CreateAction."""


class _Decision(NamedTuple):
    """Result of simulations."""

    missing: list[Need]
    unknown: str = ""
    """Why nothing could be simulated; "": it could."""


def check_rights(clients: Clients, region: str, stacks: Sequence[Infrastructure] = ()) -> Iterator[CheckResult]:
    """Yield which permissions the caller lacks for launches, groups of jobs, gc and the catalogue. `stacks`: infra
    stacks, whose role launches use."""
    if clients.identity.is_root:
        message = "the root user may do everything"
        yield CheckResult("rights", "warning", message, "use an IAM user or role with fewer rights", {"missing": []})
        return
    has_role = any(stack.machine_role for stack in stacks)
    wanted = [_eased(one) if has_role else one for one in needs(PERMISSIONS) if one.set != "job_dir"]
    found = _simulate(clients, region, wanted, {})
    if not found.unknown:
        yield from compare(wanted, found.missing, page=PAGE, who="these credentials")
        return
    yield from _dry_runs(clients, region, found.unknown)


def check_job_dir_rights(clients: Clients, region: str, bucket: str, prefix: str) -> Iterator[CheckResult]:
    """Yield which permissions the caller lacks in a bucket's folder."""
    if clients.identity.is_root:
        return
    wanted = [one for one in needs(PERMISSIONS) if one.set == "job_dir"]
    folder = f"{prefix}/" if prefix else ""
    found = _simulate(clients, region, wanted, {"bucket": bucket, "prefix": folder})
    if found.unknown:
        yield CheckResult("job_dir", "warning", f"whether it can be written was not checked: {found.unknown}", _allow())
        return
    yield from compare(wanted, found.missing, page=PAGE, who="these credentials", subject="job_dir")


def _eased(need: Need) -> Need:
    """Return the need as optional if it is for making roles, one of which an infra stack has made."""
    makes_roles = need.set == "launch" and need.permission.startswith("iam:") and need.permission != "iam:PassRole"
    if makes_roles:
        return need._replace(without="jobs with inputs or outputs outside the stack's bucket cannot run")
    return need


def _allow() -> str:
    return f"allow iam:SimulatePrincipalPolicy and iam:GetRole on your own user or role, see {PAGE}"


# --- simulation
# -------------------------------------------------------------------------------------------------------


def _simulate(clients: Clients, region: str, wanted: Sequence[Need], place: Mapping[str, str]) -> _Decision:
    """Return the permissions that IAM's simulation denies."""
    try:
        source = _policy_source(clients, region)
    except ProvisionError as error:
        return _Decision([], one_line(str(error)))
    if not source:
        return _Decision([], f"IAM simulates no policies of {clients.identity.arn}")
    names = {"partition": clients.partition(region), "region": region, "account": clients.identity.account}
    questions = list(_questions(wanted, {**names, "owner": _NAME, **place}))

    def ask(question: _Question) -> set[str]:
        return _allowed(clients, region, source, question, place.get("prefix", ""))

    with ThreadPoolExecutor(_AT_ONCE, "cloudgpu-check") as pool:
        try:
            answers = list(pool.map(with_context(ask), questions))
        except ProvisionError as error:
            return _Decision([], one_line(str(error)))
    missing = [
        need
        for question, allowed in zip(questions, answers, strict=True)
        for need in question.needs
        if need.permission.casefold() not in allowed
    ]
    return _Decision(sorted(missing, key=wanted.index))


def _policy_source(clients: Clients, region: str) -> str:
    """Return the ARN of the user or role whose policies apply; "": IAM simulates none for this kind of identity.

    The ARN of a session names its role without the role's path, which only iam:GetRole returns. Raises ProvisionError.
    """
    arn = clients.identity.arn
    kind, _, rest = arn.rpartition(":")[2].partition("/")
    if kind == "user":
        return arn
    if kind != "assumed-role":
        return ""
    doing = "ask for the path of these credentials' role"
    with parsing(doing), translate_errors(doing, clients.clock):
        return clients.iam(region).get_role(RoleName=rest.partition("/")[0])["Role"]["Arn"]


def _questions(wanted: Sequence[Need], names: Mapping[str, str]) -> Iterator[_Question]:
    """Yield calls that together cover all permissions: one for each set of resources."""
    groups: dict[tuple[tuple[str, ...], str], list[Need]] = {}
    for need in wanted:
        resources = tuple(one.format_map(names) for one in need.resources)
        created_by = "CreateLaunchTemplate" if need.set == "groups" else "RunInstances"
        groups.setdefault((resources, created_by), []).append(need)
    for (resources, created_by), members in groups.items():
        for at in range(0, len(members), _MOST_ACTIONS):
            yield _Question(tuple(members[at : at + _MOST_ACTIONS]), resources, created_by)


def _allowed(clients: Clients, region: str, source: str, question: _Question, prefix: str) -> set[str]:
    """Return the actions, in lower case, that are allowed on all of the question's resources. Raises ProvisionError."""
    more: dict[str, Any] = {"ResourceArns": list(question.resources)} if question.resources else {}
    pages = (
        clients.iam(region)
        .get_paginator("simulate_principal_policy")
        .paginate(
            PolicySourceArn=source,
            ActionNames=sorted({one.permission for one in question.needs}),
            ContextEntries=_context(clients, region, question.created_by, prefix),
            **more,
        )
    )
    decisions: dict[str, list[str]] = {}
    doing = "simulate the policies of these credentials"
    with parsing(doing), translate_errors(doing, clients.clock):
        for page in pages:
            for one in page["EvaluationResults"]:
                parts = [part["EvalResourceDecision"] for part in one.get("ResourceSpecificResults", ())]
                decisions.setdefault(one["EvalActionName"].casefold(), []).extend(parts or [one["EvalDecision"]])
    return {action for action, parts in decisions.items() if set(parts) == {"allowed"}}


def _context(clients: Clients, region: str, created_by: str, prefix: str) -> list[ContextEntryTypeDef]:
    """Return the values of condition keys as cloudgpu's calls have them."""
    china = clients.partition(region) == "aws-cn"
    values = {
        f"aws:RequestTag/{OWNER}": _NAME,
        f"aws:ResourceTag/{OWNER}": _NAME,
        "aws:RequestedRegion": region,
        "ec2:CreateAction": created_by,
        "iam:PassedToService": "ec2.amazonaws.com.cn" if china else "ec2.amazonaws.com",
        "s3:prefix": prefix,
        "iam:PermissionsBoundary": os.environ.get(BOUNDARY_VARIABLE, ""),
    }
    return [
        {"ContextKeyName": key, "ContextKeyType": "string", "ContextKeyValues": [value]}
        for key, value in values.items()
        if value
    ]


# --- dry runs
# ---------------------------------------------------------------------------------------------------------


def _dry_runs(clients: Clients, region: str, why: str) -> Iterator[CheckResult]:
    """Yield the results of EC2's dry runs, where nothing could be simulated."""
    wanted = {one.permission: one for one in needs(PERMISSIONS) if one.set == "launch" and _has_dry_run(one.permission)}
    with ThreadPoolExecutor(_AT_ONCE, "cloudgpu-check") as pool:
        ask = with_context(partial(_dry_run, clients, region))
        answers: dict[str, bool | None] = dict(zip(wanted, pool.map(ask, wanted), strict=True))
    missing = [wanted[action] for action, allowed in answers.items() if allowed is False]
    if missing:
        yield from compare(list(wanted.values()), missing, page=PAGE, who="these credentials")
    known = sum(allowed is not None for allowed in answers.values())
    everything = len({one.permission for one in needs(PERMISSIONS) if one.set != "job_dir"})
    message = f"{known} of {everything} permissions were checked, by dry runs of EC2; the others were not: {why}"
    yield CheckResult("rights", "warning", message, _allow(), {"checked": known, "needed": everything})


def _has_dry_run(permission: str) -> bool:
    service, _, action = permission.partition(":")
    return service == "ec2" and (action.startswith("Describe") or action == "RunInstances")


def _dry_run(clients: Clients, region: str, permission: str) -> bool | None:
    """Return whether EC2 would accept a call; None: it answered something else."""
    action = permission.partition(":")[2]
    try:
        with translate_errors(f"try {permission}", clients.clock):
            if action == "RunInstances":
                _run_instances(clients, region)
            else:
                ec2: Any = clients.ec2(region)
                ec2._make_api_call(action, {"DryRun": True})
    except ProvisionError as error:
        return {"DryRunOperation": True, "UnauthorizedOperation": False}.get(error.code)
    return True


def _run_instances(clients: Clients, region: str) -> None:
    """Send RunInstances as a dry run, tagged as a launch. Raises botocore's errors and ProvisionError."""
    image = Images(clients).find(region, _DRY_RUN_TYPE)
    ec2: Any = clients.ec2(region)
    ec2.run_instances(
        DryRun=True,
        ImageId=image.ami,
        InstanceType=_DRY_RUN_TYPE,
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[{"ResourceType": kind, "Tags": [{"Key": OWNER, "Value": _NAME}]} for kind in _MADE],
    )
