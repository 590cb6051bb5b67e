"""The compatibility rules one by one: what they allow and refuse, and the alternatives that they suggest."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.jobspecs import catalog, targets
from cloudgpu.jobspecs.diagnostics import Loc
from cloudgpu.jobspecs.models import JobSpec
from cloudgpu.jobspecs.rules.base import Rule, listing
from cloudgpu.jobspecs.rules.compatibility import (
    JOB_RULES,
    RULES,
    TARGET_RULES,
    Request,
    all_refusals,
    check_names,
    first_refusal,
    target_refusals,
)
from cloudgpu.jobspecs.rules.machines import built_in, carriers, closest_available, is_attached, within_limits
from cloudgpu.jobspecs.targets import FLEET_CLOUDS
from cloudgpu.jobspecs.units import CountRange

TODAY = "2026-11-20"


def ask(
    cloud: str, accelerator: str | None = None, machine_type: str | None = None, today: str = TODAY, **place: str
) -> Request:
    """Return the query for a request, such as `ask("gcp", "L4:1", region="us-east4")`."""
    name, _, gpus = (accelerator or "").partition(":")
    return Request(cloud, today, name or None, CountRange.parse(gpus) if gpus else None, machine_type, **place)


def job(**fields: Any) -> JobSpec:
    return JobSpec.model_validate({"name": "j", "run": "true", **fields})


ALLOWED = [
    ask("gcp", "L4:1"),
    ask("gcp", "L4:2..8"),
    ask("gcp", "L4:1", "g2-standard-4", region="us-central1", zone="us-central1-a", market="spot"),
    ask("gcp", "T4:1", "n1-standard-32"),  # 48 vCPUs on Compute Engine; Vertex AI allows fewer
    ask("vertex", "T4:2", "n1-standard-32"),
    ask("gcp", "V100-16GB:1", "n1-highmem-8"),
    ask("gcp", "H100-80GB:1", market="spot"),
    ask("gcp", "H100-80GB:8", market="on-demand"),
    ask("gcp", "GB200:4", market="reservation"),
    ask("gcp", "RTX-PRO-6000-BSE:1/8"),
    ask("gcp", None, "n1-standard-8", region="us-central1"),
    ask("gcp"),
    ask("aws", "L4:1/8", "g6f.large"),
    ask("aws", "L4:1", region="us-east-1"),
    ask("aws", "H100-80GB:8", "p5.48xlarge"),
    ask("azure", "T4:1", "Standard_NC4as_T4_v3", region="eastus", market="spot"),
    ask("azure", "A10:1/6"),
    ask("vertex", "L4:1", "g2-standard-4", region="us-central1"),
]


@pytest.mark.parametrize("allowed", ALLOWED, ids=str)
def test_allowed(allowed: Request) -> None:
    assert all_refusals(allowed) == []


FORBIDDEN = [
    ("accelerator-known", ask("gcp", "A1000:1"), "no accelerator named 'A1000'", "A100"),
    ("accelerator-offered", ask("azure", "L4:1"), "azure has no machine with L4", "aws, gcp or vertex"),
    ("accelerator-offered", ask("aws", "MI300X:8"), "aws has no machine with MI300X", "azure"),
    ("accelerator-retired", ask("gcp", "K80:1"), "since 2024-04-30", "g2-standard-4 with L4:1"),
    ("accelerator-retired", ask("gcp", "P100:1"), "since 2026-09-15", "L4:1"),
    ("accelerator-retired", ask("gcp", "T4:1", today="2027-08-01"), "since 2027-08-01", "L4:1"),
    ("accelerator-retired", ask("azure", "V100-16GB:1"), "since 2025-09-30", "Standard_"),
    ("machine-type-known", ask("gcp", "L4:1", "g2-standrad-4"), "no machine type", "g2-standard-4"),
    (
        "machine-type-known",
        ask("gcp", "H100-80GB:8", "a3-highgpu-8g-x"),
        "in the tables",
        "catalog refresh --cloud gcp",
    ),
    ("machine-type-known", ask("aws", None, "p9.48xlarge"), "no machine type", "catalog refresh --cloud aws"),
    ("machine-type-known", ask("azure", None, "NC4as_T4_v3"), "no machine type", "did you mean Standard_NC4as_T4_v3?"),
    ("machine-type-known", ask("gcp", None, "n1-custom-8-30720"), "no machine type", "custom machine types are not"),
    ("machine-type-known", ask("aws", None, "m5.large"), "no machine type", "machine types with accelerators, and"),
    ("machine-type-known", ask("gcp", "A100-40GB:8", "p4d.24xlarge"), "no machine type", "machine type of aws"),
    ("machine-type-retired", ask("aws", "V100-16GB:8", "p3.16xlarge"), "since 2026-05-02", ":8"),
    ("machine-type-retired", ask("azure", None, "Standard_NC6s_v3"), "since 2025-09-30", "Standard_"),
    ("accelerator-on-machine-type", ask("aws", "H100-80GB:8", "p4d.24xlarge"), "does not take", "A100-40GB:8"),
    ("accelerator-on-machine-type", ask("gcp", "A100-40GB:1", "n1-standard-8"), "does not take", "a2-highgpu-1g"),
    ("accelerator-on-machine-type", ask("gcp", "T4:1", "g2-standard-4"), "does not take", "L4:1"),
    ("count-on-machine-type", ask("gcp", "V100-16GB:3", "n1-standard-4"), "cannot have 3", "1, 2, 4 or 8"),
    ("vcpus-and-memory", ask("gcp", "V100-16GB:1", "n1-standard-16"), "16 vCPU and 60 GB", "1 to 12 vCPU"),
    ("vcpus-and-memory", ask("gcp", "V100-16GB:1", "n1-standard-16"), "16 vCPU", "takes V100-16GB:2, 4 or 8"),
    ("vcpus-and-memory", ask("gcp", "T4:1", "n1-standard-64"), "64 vCPU and 240 GB", "1 to 48 vCPU and 1 to 312 GB"),
    ("vcpus-and-memory", ask("vertex", "V100-16GB:2", "n1-highmem-32"), "32 vCPU and 208 GB", "1 to 24 vCPU"),
    ("count-on-machine-type", ask("vertex", "T4:1", "n1-standard-32"), "cannot have 1", "2 or 4"),
    ("count-on-machine-type", ask("gcp", "L4:2", "g2-standard-4"), "cannot have 2", "g2-standard-24"),
    ("count-on-machine-type", ask("aws", "L4:1", "g6f.large"), "cannot have 1", "L4:1/8"),
    ("count-offered", ask("gcp", "L4:3"), "no machine of gcp has 3 L4", "1, 2, 4 or 8"),
    ("count-offered", ask("gcp", "L4:1/2"), "no machine of gcp has 1/2 L4", "L4:1"),
    ("count-offered", ask("aws", "L4:1/3"), "no machine of aws has 1/3 L4", "1/8, 1/4, 1/2"),
    ("count-offered", ask("azure", "A100-40GB:1"), "has 1 A100-40GB", "A100-80GB:1 is on Standard_NC24ads_A100_v4"),
    ("count-offered", ask("azure", "H100-80GB:1"), "has 1 H100-80GB", "H100-NVL-94GB:1 is on Standard_NC40ads_H100_v5"),
    ("accelerator-offered", ask("gcp", "V100-32GB:1"), "gcp has no machine with V100-32GB", "V100-16GB:1 is on n1-"),
    ("count-offered", ask("vertex", "RTX-PRO-6000-BSE:1/8"), "1/8", "1, 2, 4 or 8"),
    ("cpu-machines", ask("aws"), "no machine types of aws without GPUs: a job there needs", "local, gcp or vertex"),
    ("cpu-machines", ask("azure"), "no machine types of azure without GPUs", "accelerator: T4:1"),
    ("market-supported", ask("azure", "T4:1", market="flex-start"), "no market 'flex-start'", "reservation or spot"),
    ("market-sold", ask("gcp", "H100-80GB:1", market="on-demand"), "not sold as on-demand", "flex-start or spot"),
    ("market-sold", ask("gcp", "GB200:4", market="spot"), "not sold as spot", "reservation"),
    ("market-sold", ask("gcp", "H200-141GB:8", market="on-demand"), "not sold as on-demand", "spot"),
    ("place-known", ask("azure", "GB200:4"), "no region that has Standard_ND128isr_NDR_GB200_v6", "catalog refresh"),
    ("region-known", ask("gcp", "L4:1", region="us-east-1"), "no region 'us-east-1'", "region of aws"),
    ("region-known", ask("aws", "L4:1", region="us-esat-1"), "no region", "us-east-1"),
    ("zone-known", ask("gcp", "L4:1", zone="us-central1-z"), "no zone", "us-central1-"),
    ("zone-known", ask("aws", "L4:1", zone="us-east-1a"), "no zone", "use1-az1"),
    ("zone-in-region", ask("gcp", "T4:1", region="us-central1", zone="us-east1-c"), "zone of us-east1", "us-east1"),
    ("offered-in-region", ask("gcp", "B200:8", region="europe-west2"), "not offered in europe-west2", "us-"),
    ("offered-in-region", ask("azure", "MI300X:8", region="brazilsouth"), "not offered", "regions that have it"),
    (
        "offered-in-zone",
        ask("gcp", "A100-80GB:1", zone="us-central1-f"),
        "not offered in us-central1-f",
        "us-central1-",
    ),
]


@pytest.mark.parametrize(("rule", "forbidden", "message", "allowed"), FORBIDDEN, ids=lambda v: str(v)[:60])
def test_forbidden(rule: str, forbidden: Request, message: str, allowed: str) -> None:
    refusal = first_refusal(forbidden)
    assert refusal is not None
    assert refusal.rule == rule
    assert message in refusal.message
    assert allowed in refusal.allowed
    assert refusal.cloud == forbidden.cloud
    assert str(forbidden) == refusal.subject


def test_every_rule_is_tested_both_ways() -> None:
    assert {rule.name for rule in RULES} == {rule for rule, *_ in FORBIDDEN}
    for rule in RULES:
        assert any(all(getattr(a, field) is not None for field in rule.needs) for a in ALLOWED), rule.name


def test_rules_are_documented() -> None:
    names = [rule.name for rule in (*RULES, *TARGET_RULES)] + list(JOB_RULES)
    assert len(set(names)) == len(names)
    assert all(name == name.lower() and " " not in name for name in names)
    assert all(rule.check.__doc__ for rule in (*RULES, *TARGET_RULES))
    page = (Path(__file__).parents[2] / "docs" / "explanation" / "planning.md").read_text()
    assert [name for name in names if f"`{name}`" not in page] == []


def test_a_rule_waits_for_its_fields() -> None:
    calls: list[Request] = []
    rule = Rule("r", ("region",), calls.append)
    assert rule.refuse(ask("gcp")) is None
    assert calls == []


def test_n1_limits_of_a_zone() -> None:
    """Four P100 are the only count with exceptions: 96 vCPUs are within the limits, except in three zones."""
    machine = catalog.find_machine_type("gcp", "n1-standard-96", "P100")
    assert machine is not None
    assert within_limits(machine, Fraction(4), None)
    assert within_limits(machine, Fraction(4), "us-central1-c")
    assert not within_limits(machine, Fraction(4), "us-east1-c")


@pytest.mark.parametrize("cloud", ["gcp", "vertex"])
def test_n1_counts_keep_the_limits(cloud: str) -> None:
    """Every listed count of GPUs is within the limits of vCPUs and memory."""
    for group in catalog.machine_types(cloud).values():
        for machine in group:
            if machine.accelerator is None or not is_attached(cloud, machine.name) or machine.status == "retired":
                continue
            for count in machine.counts:
                limits = catalog.n1_limits(machine.accelerator, count)
                assert limits is not None
                assert limits.min_vcpus <= (machine.vcpus or 0) <= limits.max_vcpus, machine
                assert limits.min_memory_gb <= (machine.memory_gb or 0) <= limits.max_memory_gb, machine


def test_every_machine_type_without_a_request_has_one_meaning() -> None:
    """Without an accelerator, a machine type means its built-in GPUs, or no GPUs if they are attached separately."""
    for cloud in catalog.CLOUDS:
        for name, group in catalog.machine_types(cloud).items():
            assert (built_in(cloud, name) is None) == is_attached(cloud, name), (name, group)


def test_closest_living_is_no_worse() -> None:
    for cloud in catalog.CLOUDS:
        for accelerator in catalog.accelerators().values():
            gone = carriers(cloud, accelerator.name)
            if not gone or not all(m.is_retired_on(TODAY) for m in gone):
                continue
            found = closest_available(ask(cloud, f"{accelerator.name}:1"))
            if found is not None:
                machine, count = found
                assert not machine.is_retired_on(TODAY)
                assert machine.accelerator is not None
                assert catalog.accelerators()[machine.accelerator].memory_gb >= accelerator.memory_gb
                assert count >= 1


# --- targets ----------------------------------------------------------------------------------------------------------


def refused(target: str, **fields: Any) -> set[str]:
    return {refusal.rule for refusal in target_refusals(job(**fields), target)}


@pytest.mark.parametrize(
    ("rule", "target", "fields"),
    [
        ("container-image", "local", {"image": "pytorch/pytorch"}),
        ("container-image", "local", {"roles": {"worker": {"image": "pytorch/pytorch"}}}),
        ("gpu-idle-limit", "local", {"limits": {"gpu_idle": "1h"}}),
        ("gpu-idle-limit", "gcp", {"limits": {"gpu_idle": "1h"}, "resources": {"machine_type": "n1-standard-4"}}),
        ("gpu-idle-limit", "azure", {"limits": {"gpu_idle": "1h"}, "resources": {"accelerator": ["L4", "MI300X:8"]}}),
        ("parts-of-gpus", "local", {"resources": {"accelerator": "L4:1/8"}}),
        ("zone-choice", "vertex", {"resources": {"accelerator": "L4", "zone": "us-central1-a"}}),
        ("fewer-nodes", "vertex", {"resources": {"accelerator": "L4", "nodes": "2..4"}}),
        ("zone-choice", "local", {"resources": {"zone": "us-central1-a"}}),
        ("zone-choice", "azure", {"resources": {"accelerator": "T4", "zone": "2"}}),
        ("own-group", "local", {"recover": "fleet"}),
        ("own-group", "vertex", {"recover": "fleet", "resources": {"accelerator": "L4"}}),
        (
            "own-group",
            "gcp",
            {"recover": "fleet", "resources": {"accelerator": "L4", "market": ["spot", "flex-start"]}},
        ),
        ("own-group", "aws", {"recover": "fleet", "resources": {"accelerator": "L4", "nodes": "2..4"}}),
        ("own-group", "azure", {"recover": "fleet", "roles": {"chief": {"accelerator": "T4"}, "worker": {}}}),
        ("priority", "aws", {"priority": 1}),
        ("priority", "gcp", {"priority": 100}),
        ("priority", "vertex", {"priority": 1, "resources": {"accelerator": "L4"}}),
        ("priority", "azure", {"priority": 1}),
        ("given-machine", "local", {"resources": {"region": "us-central1"}}),
        ("given-machine", "local", {"resources": {"machine_type": "n1-standard-4"}}),
        ("given-machine", "local", {"resources": {"disk": "200GB"}}),
        ("given-machine", "local", {"roles": {"worker": {"machine_type": "n1-standard-4"}}}),
    ],
)
def test_a_field_the_target_cannot_honour_is_refused(rule: str, target: str, fields: dict[str, Any]) -> None:
    assert rule in refused(target, **fields)


@pytest.mark.parametrize("target", [*targets.built_in()])
def test_who_honours_priority(target: str) -> None:
    assert refused(target, priority=0) == refused(target) == set()
    assert refused(target, priority=50) == (set() if target == "local" else {"priority"})


@pytest.mark.parametrize(
    ("rule", "lacking", "fields"),
    [
        ("launcher", {"launchers": frozenset({"none"})}, {"launcher": "horovod"}),
        ("several-nodes", {"multi_node": False}, {"resources": {"nodes": 2}}),
        ("several-nodes", {"multi_node": False}, {"roles": {"chief": {}, "worker": {}}}),
        ("several-roles", {"roles": False}, {"roles": {"chief": {}, "worker": {}}}),
        ("gpu-idle-limit", {"gpu_idle": False}, {"limits": {"gpu_idle": "1h"}, "resources": {"accelerator": "L4"}}),
    ],
)
def test_what_every_target_of_today_can(rule: str, lacking: dict[str, Any], fields: dict[str, Any]) -> None:
    able = targets.built_in()["gcp"]
    (found,) = (r for r in TARGET_RULES if r.name == rule)
    assert found.refuse(job(**fields), able) is None
    assert found.refuse(job(**fields), able._replace(**lacking)) is not None


@pytest.mark.parametrize(
    "fields",
    [
        {"resources": {"accelerator": {"memory": "24GB.."}}},
        {"resources": {"machine_type": "g2-standard-4"}},  # has a built-in L4
        {"roles": {"chief": {}, "worker": {"accelerator": "L4"}}},
    ],
)
def test_gpus_that_can_be_seen_idle(fields: dict[str, Any]) -> None:
    assert refused("gcp", limits={"gpu_idle": "1h"}, **fields) == set()


@pytest.mark.parametrize("target", list(targets.built_in()))
def test_a_plain_job_is_honoured_by_every_target(target: str) -> None:
    assert refused(target) == set()
    assert refused(target, resources={"nodes": 2}, launcher="torchrun") == set()


@pytest.mark.parametrize("target", FLEET_CLOUDS)
def test_a_group_of_its_own(target: str) -> None:
    alike = {name: {"accelerator": "A100-80GB:8"} for name in ("chief", "worker")}
    for machines in ({"resources": {"market": ["spot", "on-demand"], "nodes": 4}}, {"roles": alike}):
        assert refused(target, recover="fleet", **machines) == set()


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "loc", "code", "hint"),
    [
        ({"accelerator": "A1000:1"}, ("resources", "accelerator", 0), "unknown-accelerator", "A100"),
        ({"accelerator": ["L4", "H1OO:8"]}, ("resources", "accelerator", 1), "unknown-accelerator", "H100"),
        ({"cloud": "gcp", "region": "us-east-1"}, ("resources", "region", 0), "unknown-region", "cloud: aws"),
        ({"region": ["us-central1", "us-esat1"]}, ("resources", "region", 1), "unknown-region", "us-east1"),
        ({"zone": "us-east-1a"}, ("resources", "zone", 0), "unknown-zone", "use1-az1"),
        ({"zone": "us-east1-c", "region": "us-central1"}, ("resources", "zone", 0), "zone-in-region", "us-east1"),
        ({"machine_type": "n1-standrad-4"}, ("resources", "machine_type"), "unknown-machine-type", "n1-standard-4"),
        ({"cloud": "gcp", "machine_type": "p5.48xlarge"}, ("resources", "machine_type"), "unknown-machine-type", "aws"),
    ],
)
def test_names_that_exist_nowhere_are_mistakes(fields: dict[str, Any], loc: Loc, code: str, hint: str) -> None:
    (problem,) = check_names(job(resources=fields))
    assert (problem.loc, problem.code, problem.severity) == (loc, code, "error")
    assert hint in problem.hint


def test_a_zone_is_no_mistake_where_no_target_lets_a_job_choose_it() -> None:
    """The zone is refused because the target does not support the choice, whatever its name."""
    assert check_names(job(resources={"cloud": "azure", "region": "eastus", "zone": "2"})) == []
    (problem,) = check_names(job(resources={"cloud": ["azure", "gcp"], "zone": "2"}))
    assert problem.code == "unknown-zone" and problem.message.startswith("gcp:")


def test_names_of_roles() -> None:
    spec = job(roles={"worker": {"accelerator": "A1000"}, "chief": {"machine_type": "n1-standrad-4"}})
    assert {(p.loc, p.code) for p in check_names(spec)} == {
        (("roles", "worker", "accelerator", 0), "unknown-accelerator"),
        (("roles", "chief", "machine_type"), "unknown-machine-type"),
    }


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"accelerator": "none"},
        {"accelerator": ["nvidia-tesla-t4:1", "NVIDIA_L4", "a100-80gb", {"memory": "24GB.."}]},
        {"region": "us-central1", "cloud": ["aws", "gcp"]},  # gcp has the region; the planner refuses aws
        {"region": "us-east-1", "zone": "use1-az1"},
        {"machine_type": "g6.xlarge", "cloud": ["gcp", "aws"]},
        {"accelerator": "L4:3"},  # an impossible combination, but no mistake in the names
        {"cloud": "local", "region": "nowhere"},  # refused by the target's rules
    ],
)
def test_names_that_exist_somewhere_are_none(fields: dict[str, Any]) -> None:
    assert check_names(job(resources=fields)) == []


@pytest.mark.parametrize(
    ("fields", "code"),
    [({"accelerator": "K80:1"}, "retired-accelerator"), ({"machine_type": "p3.2xlarge"}, "retired-machine-type")],
)
def test_retired_names_are_warnings(fields: dict[str, Any], code: str) -> None:
    (problem,) = check_names(job(resources=fields))
    assert (problem.code, problem.severity) == (code, "warning")


def test_a_retired_name_still_alive_elsewhere_is_none() -> None:
    assert check_names(job(resources={"accelerator": "V100", "cloud": ["aws", "gcp"]})) == []
    assert len(check_names(job(resources={"accelerator": "V100", "cloud": "aws"}))) == 1


def test_listing() -> None:
    assert listing([]) == ""
    assert listing(["a"]) == "a"
    assert listing(["a", "b", "c"]) == "a, b or c"
    assert listing(list("abcdefghij"), 3) == "a, b, c … (10 in all)"
