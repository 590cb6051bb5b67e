"""Plan a job on a cluster: one offer if it fits the cluster's machines, else refusals. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction

from ...jobspecs import catalog
from ...jobspecs.fleets import FleetSpec
from ...jobspecs.models import AcceleratorRequest, JobSpec, Resources, Role
from ...jobspecs.plan import Offer, Plan, Refusal, RoleOffer
from ...jobspecs.rules import targets as rules_targets
from ...jobspecs.targets import info
from ..stacks.clusters import Cluster

TARGET = "cluster"


def plan_on(spec: JobSpec, cluster: Cluster) -> Plan:
    """Return a plan with one offer, or with the refusals.

    The offer's region is the cluster's name. Its price is that of the job's machines, which are billed whether or not
    the job runs."""
    refusals = tuple(
        Refusal("cluster", TARGET, f"cluster {cluster.name}", message, allowed)
        for message, allowed in _obstacles(spec, cluster)
    )
    return Plan((), refusals) if refusals else Plan((_offer(spec, cluster),))


def _offer(spec: JobSpec, cluster: Cluster) -> Offer:
    fleet = cluster.fleet
    price = None if cluster.price_usd_h is None else Decimal(cluster.price_usd_h)
    roles = tuple(
        RoleOffer(
            role=name,
            nodes=role.nodes,
            machine_type=fleet.machine_type,
            accelerator=fleet.accelerator if role.accelerator else None,
            count=_count(role, fleet),
            vcpus=None,
            memory_gb=None,
            price=price,
        )
        for name, role in spec.effective_roles().items()
    )
    nodes = sum(role.nodes for role in roles)
    return Offer(
        cloud=TARGET,
        region=cluster.name,
        zone=None,
        market=fleet.market,
        roles=roles,
        disk_gb=fleet.disk_gb,
        disk_price=Decimal(0),  # included in the price of the machines
        price=None if price is None else price * nodes,
        price_date=None,
        notes=(f"{nodes} of {fleet.size} machines of {fleet.cloud} {fleet.region}, which are paid for anyway",),
    )


def _count(role: Role, fleet: FleetSpec) -> Fraction:
    """Return the GPUs that a node gets: the largest requested number that the machine has; all if it sets no
    maximum."""
    if not role.accelerator:
        return Fraction(0)
    request = next(one for one in role.accelerator if _fits(one, fleet))
    return min(fleet.count, request.count.most or fleet.count)


def _obstacles(spec: JobSpec, cluster: Cluster) -> Iterator[tuple[str, str]]:
    """Yield (obstacle, what would be allowed) for each reason why the job does not fit the cluster."""
    fleet, roles = cluster.fleet, spec.effective_roles()
    has = f"{fleet.accelerator}:{fleet.gpus}" if fleet.accelerator else "no GPU"
    nodes = sum(role.nodes for role in roles.values())
    if nodes > fleet.size:
        more = f"`cloudgpu cluster scale {cluster.name} {nodes}`"
        yield f"the job needs {nodes} machines, the cluster has {fleet.size}", f"fewer nodes, or {more}"
    if spec.least_nodes is not None:
        whole = f"nodes: {spec.resources.nodes.most}"
        yield "a cluster replaces every lost machine: a range of nodes says nothing there", whole
    for name, role in roles.items():
        if role.accelerator and not any(_fits(one, fleet) for one in role.accelerator):
            wanted = " or ".join(map(str, role.accelerator))
            yield f"{name} needs {wanted}, the cluster's machines have {has}", "another accelerator, or another cluster"
        if role.machine_type not in (None, fleet.machine_type):
            yield f"{name} needs {role.machine_type}, the cluster's machines are {fleet.machine_type}", "leave it out"
    if spec.image is not None or any(role.image for role in roles.values()):
        yield "a cluster's machines run programs in their own image only", "leave out image"
    verdicts = [
        rule(spec, info(TARGET)) for rule in (rules_targets.idle_gpus, rules_targets.priority, rules_targets.launcher)
    ]
    verdicts.append(rules_targets.secret_managers(spec, info(fleet.cloud)))  # they are read with the machines' role
    yield from ((verdict.message, verdict.allowed) for verdict in verdicts if verdict is not None)
    yield from _elsewhere(spec.resources, fleet)
    yield from _out_of_reach(spec, cluster)


def _elsewhere(asked: Resources, fleet: FleetSpec) -> Iterator[tuple[str, str]]:
    """Yield obstacles in the job's cloud, region, zone, market and disk."""
    for key, wanted, own in (("cloud", asked.cloud, fleet.cloud), ("region", asked.region, fleet.region)):
        if wanted is not None and own not in wanted:
            yield f"the job may run in {key} {' or '.join(wanted)}, the cluster is in {own}", f"leave out {key}"
    if asked.zone is not None and (not fleet.zones or not set(fleet.zones) <= set(asked.zone)):
        yield "the cluster's group chooses the zones of its machines", "leave out zone"
    if "market" in asked.model_fields_set and fleet.market not in asked.market:
        yield f"the cluster's machines are of market {fleet.market}", "leave out market"
    if asked.disk > fleet.disk_gb:
        has = f"{fleet.disk_gb:g} GB"
        yield f"the job needs a disk of {asked.disk:g} GB, the cluster's machines have {has}", f"at most {has}"


def _out_of_reach(spec: JobSpec, cluster: Cluster) -> Iterator[tuple[str, str]]:
    """Yield the job's folders that the machines' role may not use: it grants access below the infra stack's job dir
    only."""
    below = cluster.infrastructure.job_dir.rstrip("/")
    given = spec.job_dir_on(TARGET) or below
    if not f"{given.rstrip('/')}/".startswith(f"{below}/"):
        yield f"the cluster's machines may not use {given}", f"job_dir: {below}, or leave it out"
    for path, url in spec.inputs_on(TARGET).items():
        if url is None:
            yield f"inputs.{path} is given for clouds only", f"inputs.{path}: a folder below {below}"
        elif not f"{url}/".startswith(f"{below}/"):
            yield f"the cluster's machines may not read inputs.{path}, {url}", f"a folder below {below}"


def _fits(request: AcceleratorRequest, fleet: FleetSpec) -> bool:
    if fleet.accelerator is None or request.count.least > fleet.count:
        return False
    found = catalog.find_accelerator(request.name) if request.name is not None else None
    if request.name is not None:
        return found is not None and found.name == fleet.accelerator
    own = catalog.accelerators().get(fleet.accelerator)
    return own is not None and request.memory is not None and own.memory_gb in request.memory
