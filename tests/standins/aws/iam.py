"""IAM actions that moto implements incompletely, or not at all. Source: IAM API reference,
RemoveRoleFromInstanceProfile and SimulatePrincipalPolicy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.sax.saxutils import escape

from ..faults import Call
from . import moto_side, permissions
from .account import Account
from .answers import Answer, RefusedError
from .calls import numbered
from .handlers import Forward, Handler


def remove_role_from_instance_profile(account: Account, call: Call, forward: Forward) -> Answer:
    """Return NoSuchEntity if the profile does not have the role, where moto crashes."""
    name, role = call.params.get("InstanceProfileName", ""), call.params.get("RoleName", "")
    profile = moto_side.profile(name)
    if profile is not None and role not in [one.name for one in profile.roles]:
        raise RefusedError("NoSuchEntity", f"Role {role} is not in instance profile {name}", 404)
    return forward()


def simulate_principal_policy(account: Account, call: Call, _forward: Forward) -> Answer:
    """Evaluate the caller's policies for each action and resource; everything is allowed while nothing is enforced.

    Only the caller's own policies can be simulated here. One page holds all results.
    """
    for required in ("PolicySourceArn", "ActionNames.member.1"):
        if required not in call.params:
            raise RefusedError("ValidationError", f"{required} is missing")
    actions = numbered(call.params, "ActionNames.member")
    resources = numbered(call.params, "ResourceArns.member") or ["*"]
    context = dict(_context(call))
    statements = permissions.statements_of(call, {}) if account.enforcing else None

    def decide(action: str, resource: str) -> str:
        ask = permissions.Permission(action, resource, context)
        return "allowed" if statements is None or permissions.allows(statements, ask) else "implicitDeny"

    members = "".join(_evaluation(action, {one: decide(action, one) for one in resources}) for action in actions)
    result = f"<IsTruncated>false</IsTruncated><EvaluationResults>{members}</EvaluationResults>"
    name = "SimulatePrincipalPolicy"
    head = f'<{name}Response xmlns="https://iam.amazonaws.com/doc/2010-05-08/"><{name}Result>{result}</{name}Result>'
    tail = f"<ResponseMetadata><RequestId>r</RequestId></ResponseMetadata></{name}Response>"
    return Answer(200, (head + tail).encode(), {"Content-Type": "text/xml"})


def _context(call: Call) -> Iterator[tuple[str, str]]:
    for key, name in call.params.items():
        if found := re.fullmatch(r"(ContextEntries\.member\.\d+)\.ContextKeyName", key):
            yield name, call.params[f"{found[1]}.ContextKeyValues.member.1"]


def _evaluation(action: str, decisions: dict[str, str]) -> str:
    """Return an EvaluationResult; with several resources their results are in ResourceSpecificResults, too."""
    whole = "allowed" if set(decisions.values()) == {"allowed"} else "implicitDeny"
    parts = "".join(
        f"<member><EvalResourceName>{escape(name)}</EvalResourceName><MissingContextValues/>"
        f"<EvalResourceDecision>{decision}</EvalResourceDecision></member>"
        for name, decision in decisions.items()
    )
    several = f"<ResourceSpecificResults>{parts}</ResourceSpecificResults>" if len(decisions) > 1 else ""
    return (
        f"<member><EvalActionName>{escape(action)}</EvalActionName><EvalDecision>{whole}</EvalDecision>"
        f"<EvalResourceName>{escape(next(iter(decisions)))}</EvalResourceName><MissingContextValues/>{several}</member>"
    )


HANDLERS: dict[tuple[str, str], Handler] = {
    ("iam", "RemoveRoleFromInstanceProfile"): remove_role_from_instance_profile,
    ("iam", "SimulatePrincipalPolicy"): simulate_principal_policy,
}
