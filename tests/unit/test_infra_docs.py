"""docs/reference/pulumi.md and the examples agree with the components."""

from __future__ import annotations

import ast
import json
import re
import runpy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

import cloudgpu
from cloudgpu.provisioners.aws.machine.images import parameter_for
from cloudgpu.tests.standins.pulumi.mocks import exports, only, run_strict

ROOT = Path(cloudgpu.__file__).parent
PAGE = (ROOT / "docs" / "reference" / "pulumi.md").read_text()
EXAMPLES = ROOT / "examples" / "pulumi"
CLOUDS = {"aws": "AWS", "gcp": "Google Cloud", "azure": "Azure"}
MODULES = {
    "GpuNetwork": "network",
    "JobBucket": "bucket",
    "MachineRole": "role",
    "GpuFleet": "fleet",
    "GpuCluster": "cluster",
    "OrphanReaper": "reaper",
}


def row(cloud: str, component: str) -> str:
    """Return the line of the page's table that the source requires."""
    tree = ast.parse((ROOT / "infra" / cloud / f"{MODULES[component]}.py").read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    fields = list(annotated(classes[f"{component}Args"]))
    required = [name for name, hint in fields if "NotRequired" not in hint]
    optional = [name for name, hint in fields if "NotRequired" in hint]
    outputs = [name for name, hint in annotated(classes[component]) if "Output" in hint]
    return f"| {CLOUDS[cloud]} | {listed(required)} | {listed(optional)} | {listed(outputs)} |"


def annotated(node: ast.ClassDef) -> Iterable[tuple[str, str]]:
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            yield one.target.id, ast.unparse(one.annotation)


def listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "–"


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize("component", MODULES)
def test_the_page_lists_arguments_and_outputs(component: str, cloud: str) -> None:
    section = PAGE.partition(f"\n## {component}\n")[2].partition("\n## ")[0]
    assert row(cloud, component) in section.split("\n")


def test_the_page_links_to_what_is_there() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)\)", PAGE)
    missing = [link for link in links if not (ROOT / "docs" / "reference" / link).exists()]
    assert links and missing == []


# --- examples ---------------------------------------------------------------------------------------------------------


def zones(_arguments: Any) -> dict[str, Any]:
    return {
        "id": "us-east-1",
        "names": ["us-east-1a"],
        "zoneIds": ["use1-az1"],
        "region": "us-east-1",
        "groupNames": [],
    }


AWS_INVOKES = {
    "aws:index/getRegion:getRegion": lambda _: {"id": "us-east-1", "region": "us-east-1", "name": "us-east-1"},
    "aws:index/getAvailabilityZones:getAvailabilityZones": zones,
    "aws:index/getPartition:getPartition": lambda _: {"id": "aws", "partition": "aws"},
    "aws:ssm/getParameter:getParameter": lambda _: {"id": "p", "value": "ami-1"},
    "aws:ec2/getAmi:getAmi": lambda arguments: {
        "id": arguments["filters"][0]["values"][0],
        "rootDeviceName": "/dev/sda1",
        "blockDeviceMappings": [],
    },
}


def test_the_example_for_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULUMI_CONFIG", json.dumps({"cloudgpu:image": "ami-1", "cloudgpu:expires": "2e9"}))
    found = run_strict(lambda: runpy.run_path(str(EXAMPLES / "aws" / "__main__.py")), invokes=AWS_INVOKES)
    assert only(found, "aws:autoscaling/group:Group").inputs["desiredCapacity"] == 1
    assert only(found, "aws:s3/bucket:Bucket").protect
    expiry = {"key": "cloudgpu-expires", "value": "2000000000", "propagateAtLaunch": True}
    assert expiry in only(found, "aws:autoscaling/group:Group").inputs["tags"]
    assert parameter_for("g6.xlarge") in (EXAMPLES / "aws" / "README.md").read_text()
    assert exports(found)["job_dir"] == "s3://lab-jobs-bucket-id/jobs"
    project = yaml.safe_load((EXAMPLES / "aws" / "Pulumi.yaml").read_text())
    assert project["runtime"]["name"] == "python"
    program = (EXAMPLES / "aws" / "__main__.py").read_text()
    assert all(f'"{key}"' in program for key in project["config"])


@pytest.mark.parametrize("cloud", CLOUDS)
def test_an_example_installs_this_very_checkout(cloud: str) -> None:
    """The requirement is this checkout, not a package published under the same name."""
    requirement = (EXAMPLES / cloud / "requirements.txt").read_text().splitlines()[-1]
    folder, _, extra = requirement.partition("[")
    assert (EXAMPLES / cloud / folder / "pyproject.toml").is_file() and extra == f"infra-{cloud}]"


def test_ci_files_apply_one_at_a_time_and_are_not_cut_off() -> None:
    github = yaml.safe_load((EXAMPLES / "ci" / "github-actions.yml").read_text())
    assert set(github[True]) == {"pull_request", "push"}  # YAML 1.1 reads `on` as a boolean
    assert github["concurrency"]["cancel-in-progress"] is False
    [job] = github["jobs"].values()
    commands = {
        step["if"]: step["with"]["command"] for step in job["steps"] if "pulumi/actions" in step.get("uses", "")
    }
    assert commands == {"github.event_name == 'pull_request'": "preview", "github.event_name == 'push'": "up"}
    gitlab = yaml.safe_load((EXAMPLES / "ci" / "gitlab-ci.yml").read_text())
    assert gitlab["apply"]["resource_group"] and gitlab["apply"]["interruptible"] is False
    assert "pulumi preview" in gitlab["preview"]["script"][0] and "pulumi up" in gitlab["apply"]["script"][0]
    for name in ("preview", "apply"):
        assert gitlab[name]["variables"]["AWS_ROLE_ARN"] and gitlab[name]["stage"] in gitlab["stages"]
