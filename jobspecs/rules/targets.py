"""Rules on targets: a field of the job file that a target cannot honour is refused, never ignored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from .. import catalog
from ..diagnostics import Loc
from ..models import CLOUDS, JobSpec, Resources, Role
from ..secret_references import scheme_of
from ..targets import TargetInfo, info
from .base import Verdict, listing, refusal
from .machines import built_in

if TYPE_CHECKING:
    from ..plan import Refusal


def role_key(spec: JobSpec, role: str) -> Loc:
    """Return the path of the mapping that holds the role's request."""
    return ("resources",) if spec.roles is None else ("roles", role)


class TargetRule(NamedTuple):
    """Check of a whole job against the table of targets; its docstring names the column."""

    name: str
    check: Callable[[JobSpec, TargetInfo], Verdict | None]
    key: Loc
    """Path of the job file's key that the rule concerns."""

    def refuse(self, spec: JobSpec, target: TargetInfo) -> Refusal | None:
        verdict = self.check(spec, target)
        if verdict is None:
            return None
        return refusal(self.name, target.name, f"{target.name} {spec.name}", verdict, self.key)


def several_nodes(spec: JobSpec, target: TargetInfo) -> Verdict | None:
    """Require column multi_node for a job with several machines."""
    nodes = sum(role.nodes for role in spec.effective_roles().values())
    if target.multi_node or nodes == 1:
        return None
    key: Loc = ("resources", "nodes") if spec.roles is None else ("roles",)
    return Verdict(f"{target.name} runs one node, the job wants {nodes}", "nodes: 1" + _others("multi_node"), key)


def fewer_nodes(spec: JobSpec, target: TargetInfo) -> Verdict | None:
    """Require column replaces_nodes for a range of nodes: after a loss, the others continue with fewer machines."""
    if target.replaces_nodes or spec.least_nodes is None:
        return None
    nodes = spec.resources.nodes
    return Verdict(
        f"{target.name} starts and ends all nodes together: it cannot go on with {nodes.least} of {nodes.most}",
        f"nodes: {nodes.most}" + _others("replaces_nodes"),
    )


def several_roles(spec: JobSpec, target: TargetInfo) -> Verdict | None:
    """Require column roles for roles with different machine types."""
    if target.roles or spec.roles is None:
        return None
    return Verdict(f"{target.name} runs one role only", "leave out `roles:`" + _others("roles"))


def container_image(spec: JobSpec, target: TargetInfo) -> Verdict | None:
    """Require column image for a container image of the user."""
    images: list[tuple[Loc, str | None]] = [(("image",), spec.image)]
    images += [(("roles", name, "image"), role.image) for name, role in (spec.roles or {}).items()]
    key, asked = next(((key, image) for key, image in images if image), ((), None))
    if target.image or asked is None:
        return None
    return Verdict(f"{target.name} cannot run the image {asked}", "leave out `image:`" + _others("image"), key)


def idle_gpus(spec: JobSpec, target: TargetInfo) -> Verdict | None:
    """Require column gpu_idle for stopping a job with idle GPUs, and NVIDIA GPUs: only their driver is queried."""
    if spec.limits.gpu_idle is None:
        return None
    leave_out = "leave out `limits.gpu_idle`"
    if not target.gpu_idle:
        return Verdict(f"{target.name} cannot detect idle GPUs yet", leave_out + _others("gpu_idle"))
    names = [name for role in spec.effective_roles().values() for name in _accelerators(role, target)]
    if not names:
        return Verdict("the job has no GPU that could be idle", f"{leave_out}, or ask for GPUs: `accelerator: L4`")
    known = [found for name in names if name and (found := catalog.find_accelerator(name))]
    strange = next((found for found in known if found.vendor != "NVIDIA"), None)
    if strange is None:
        return None
    return Verdict(
        f"whether {strange.vendor}'s {strange.name} is idle cannot be told", f"{leave_out}, or NVIDIA's GPUs"
    )


def _accelerators(role: Role, target: TargetInfo) -> list[str | None]:
    """Return the accelerators that a role's machines may have; None means any GPU with enough memory."""
    if role.accelerator or role.machine_type is None:
        return [request.name for request in role.accelerator]
    machine = built_in(target.name, role.machine_type)
    return [machine.accelerator] if machine else []


def own_group(spec: JobSpec, target: TargetInfo) -> Verdict | None:
    """Require column groups for a dedicated group of the job: machines of one type, kept at its size."""
    if spec.recover == "supervisor":
        return None
    if not target.groups:
        return Verdict(f"{target.name} has no groups that replace machines", "recover: supervisor" + _others("groups"))
    other: list[str] = [market for market in spec.resources.market if market not in target.groups]
    if other:
        message = f"a group of {target.name} that replaces machines cannot be bought as {listing(other)}"
        return Verdict(message, f"market: {listing(sorted(target.groups))}")
    if spec.least_nodes is not None:
        whole = f"nodes: {spec.resources.nodes.most}"
        return Verdict("with recover: fleet every lost machine is replaced: a range of nodes says nothing", whole)
    kinds = {(role.accelerator, role.machine_type) for role in spec.effective_roles().values()}
    if len(kinds) > 1:
        message = "with recover: fleet all machines are of one type, the roles ask for several"
        return Verdict(message, "the same accelerator and machine_type in every role")
    return None


def priority(spec: JobSpec, target: TargetInfo) -> Verdict | None:
    """Require column priority (a queue that honours it) for a priority other than the default 0."""
    if target.priority or spec.priority == 0:
        return None
    return Verdict(
        f"{target.name} has no queue that honours priority: {spec.priority}",
        "leave out `priority:`" + _others("priority"),
    )


def launcher(spec: JobSpec, target: TargetInfo) -> Verdict | None:
    """Require a launcher of column launchers; `auto` chooses among them."""
    if spec.launcher == "auto" or spec.launcher in target.launchers:
        return None
    return Verdict(
        f"{target.name} cannot start a program by {spec.launcher} yet",
        f"launcher: {listing(['auto', *sorted(target.launchers)])}",
    )


def parts_of_gpus(spec: JobSpec, target: TargetInfo) -> Verdict | None:
    """Require column fractional for fractions of a GPU."""
    roles = {name: role for name, role in spec.effective_roles().items() if role.accelerator}
    requests = [request for role in roles.values() for request in role.accelerator]
    if target.fractional or not requests or any(_may_be_whole(request.count.most) for request in requests):
        return None
    key = (*role_key(spec, next(iter(roles))), "accelerator")
    return Verdict(f"{target.name} hands out whole GPUs only", "a whole number of GPUs" + _others("fractional"), key)


def _may_be_whole(most: Fraction | None) -> bool:
    return most is None or most >= 1


def zone(spec: JobSpec, target: TargetInfo) -> Verdict | None:
    """Require column zones for a choice of zone; otherwise the provider chooses it within the region."""
    if target.zones or spec.resources.zone is None:
        return None
    return Verdict(f"{target.name} does not let a job choose its zone", "leave out `zone:`" + _others("zones"))


def secret_managers(spec: JobSpec, target: TargetInfo) -> Verdict | None:
    """Require a scheme of column secret_schemes for each reference: machines read secrets with their own role."""
    for name, source in spec.secrets.items():
        scheme = scheme_of(source)
        if scheme and scheme not in target.secret_schemes:
            return Verdict(
                f"machines of {target.name} cannot read {scheme}://",
                _readable(name, target) + _others_reading(scheme),
                ("secrets", name),
            )
    return None


def _readable(name: str, target: TargetInfo) -> str:
    own = [f"{scheme}://" for scheme in target.secret_schemes]
    return listing([*own, f"env:{name}, which this computer sends"])


def _others_reading(scheme: str) -> str:
    names: list[str] = [name for name in CLOUDS if scheme in info(name).secret_schemes]
    return f", or the target {listing(names)}" if names else ""


_PLACE_FIELDS = ("region", "machine_type", "disk")


def this_machine_only(spec: JobSpec, target: TargetInfo) -> Verdict | None:
    """Refuse regions, machine types and disks on a target that is an existing machine (column machines)."""
    if target.machines in {"tables", "own"}:
        return None
    defaults, asked = Resources(), spec.resources
    keys: list[Loc] = [("resources", name) for name in _PLACE_FIELDS if getattr(asked, name) != getattr(defaults, name)]
    keys += [("roles", name, "machine_type") for name, role in (spec.roles or {}).items() if role.machine_type]
    if not keys:
        return None
    fields = listing([".".join(map(str, key)) for key in keys])
    message = f"{target.name} is one given machine: it cannot honour {fields}"
    return Verdict(message, f"leave it out for {target.name}", keys[0])


TARGET_RULES = (
    TargetRule("several-nodes", several_nodes, ("resources", "nodes")),
    TargetRule("fewer-nodes", fewer_nodes, ("resources", "nodes")),
    TargetRule("several-roles", several_roles, ("roles",)),
    TargetRule("container-image", container_image, ("image",)),
    TargetRule("gpu-idle-limit", idle_gpus, ("limits", "gpu_idle")),
    TargetRule("own-group", own_group, ("recover",)),
    TargetRule("priority", priority, ("priority",)),
    TargetRule("launcher", launcher, ("launcher",)),
    TargetRule("parts-of-gpus", parts_of_gpus, ("resources", "accelerator")),
    TargetRule("zone-choice", zone, ("resources", "zone")),
    TargetRule("secret-manager", secret_managers, ("secrets",)),
    TargetRule("given-machine", this_machine_only, ("resources",)),
)


def target_refusals(spec: JobSpec, target: str) -> Iterator[Refusal]:
    """Yield a refusal for each rule that forbids the job on the target."""
    for rule in TARGET_RULES:
        refused = rule.refuse(spec, info(target))
        if refused is not None:
            yield refused


def _others(capability: str) -> str:
    """Return the end of a hint, with the targets that have a capability: `, or the target aws or gcp`; "" if none."""
    names: list[str] = [name for name in CLOUDS if getattr(info(name), capability)]
    return f", or the target {listing(names)}" if names else ""
