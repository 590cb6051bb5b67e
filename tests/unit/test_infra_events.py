"""What is made of an engine's events."""

from __future__ import annotations

from typing import Any

import pytest
from pulumi.automation.events import EngineEvent

from cloudgpu.infra.engine.events import Change, EventCollector, Step, count_by_operation, kind_of, name_of

VPC = "urn:pulumi:infra::cloudgpu::cloudgpu-aws:index:GpuNetwork$aws:ec2/vpc:Vpc::network-vpc"
STACK = "urn:pulumi:infra::cloudgpu::pulumi:pulumi:Stack::cloudgpu-infra"
KIND = "aws:ec2/vpc:Vpc"


def metadata(op: str, urn: str = VPC, **more: Any) -> dict[str, Any]:
    kind = urn.split("::")[2].rpartition("$")[2]
    state = {"type": kind, "urn": urn, "custom": not kind.startswith("cloudgpu"), "protect": more.pop("protect", False)}
    return {"metadata": {"op": op, "urn": urn, "type": kind, "provider": "", "new": state, **more}}


def told(*events: dict[str, Any]) -> tuple[EventCollector, list[Step]]:
    steps: list[Step] = []
    watch = EventCollector(steps.append)
    for event in events:
        watch(EngineEvent.from_json(event))
    return watch, steps


def diagnostic(message: str, severity: str = "error", urn: str = VPC) -> dict[str, Any]:
    return {"diagnosticEvent": {"message": message, "severity": severity, "color": "raw", "urn": urn}}


def test_names() -> None:
    assert (kind_of(VPC), name_of(VPC)) == (KIND, "network-vpc")
    assert kind_of("nonsense") == ""


@pytest.mark.parametrize("op", ["create", "update", "delete"])
def test_a_step_begins_and_ends(op: str) -> None:
    watch, steps = told({"resourcePreEvent": metadata(op)}, {"resOutputsEvent": metadata(op)})
    assert [(step.change.op, step.change.name, step.state) for step in steps] == [
        (op, "network-vpc", "begun"),
        (op, "network-vpc", "done"),
    ]
    assert [(change.op, change.kind) for change in watch.changes] == [(op, KIND)]


def test_what_stays_as_it_is_is_counted_and_not_shown() -> None:
    watch, steps = told({"resourcePreEvent": metadata("same")}, {"resOutputsEvent": metadata("same")})
    assert (watch.changes, steps) == ([Change("same", KIND, "network-vpc")], [])
    assert count_by_operation(watch.changes) == {}


def test_a_replacement_is_one_change_of_two_steps() -> None:
    watch, steps = told(
        {"resourcePreEvent": metadata("create-replacement")},
        {"resOutputsEvent": metadata("create-replacement")},
        {"resourcePreEvent": metadata("replace", keys=["cidrBlock"], diffs=["cidrBlock", "tags"])},
        {"resourcePreEvent": metadata("delete-replaced")},
        {"resOutputsEvent": metadata("delete-replaced")},
    )
    assert watch.changes == [Change("replace", KIND, "network-vpc", ("cidrBlock",))]
    assert [(step.change.op, step.state) for step in steps] == [
        ("replace", "begun"),
        ("replace", "done"),
        ("delete", "begun"),
        ("delete", "done"),
    ]


def test_components_and_the_stack_are_nothing_in_the_cloud() -> None:
    component = "urn:pulumi:infra::cloudgpu::cloudgpu-aws:index:GpuNetwork::network"
    watch, steps = told(
        {"resourcePreEvent": metadata("create", component)}, {"resourcePreEvent": metadata("create", STACK)}
    )
    assert (watch.changes, steps) == ([], [])


def test_errors_name_their_resource_and_show_no_colour_codes_and_no_traceback() -> None:
    watch, steps = told(
        {"resourcePreEvent": metadata("create")},
        diagnostic("<{%reset%}>creating VPC: VpcLimitExceeded: five\n<{%reset%}>"),
        {"resOpFailedEvent": metadata("create")},
        diagnostic("python inline source runtime error: boom\nTraceback (most recent call last):\n  File x", urn=STACK),
        diagnostic("update failed", urn=STACK),
        diagnostic("the program has gone: Resource monitor has terminated, shutting down", urn=STACK),
        diagnostic("old", "warning"),
    )
    assert watch.errors == [f"network-vpc ({KIND}): creating VPC: VpcLimitExceeded: five"]
    assert watch.run_errors == ["python inline source runtime error: boom"]
    assert watch.warnings == [f"network-vpc ({KIND}): old"]
    assert [step.state for step in steps] == ["begun", "failed"]
