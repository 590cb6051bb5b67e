"""A call that hangs in one region delays no launch in another region of the same target."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from cloudgpu.provisioners.aws.provisioner import AwsProvisioner
from cloudgpu.provisioners.azure import clients as azure
from cloudgpu.provisioners.azure.catalog.sizes import Sizes
from cloudgpu.provisioners.azure.machine.images import Images as AzureImages
from cloudgpu.provisioners.gcp import clients as gcp
from cloudgpu.provisioners.gcp.machine.images import Images as GcpImages
from cloudgpu.tests.standins.agents import until
from cloudgpu.tests.standins.aws import Aws
from cloudgpu.tests.standins.aws.launches import REQUEST, session
from cloudgpu.tests.standins.azure import Azure
from cloudgpu.tests.standins.clocks import FastClock
from cloudgpu.tests.standins.faults import HANG, Control
from cloudgpu.tests.standins.gce.control import GceControl
from cloudgpu.tests.standins.gcp import Gcp

from .test_azure_provisioner import T4
from .test_azure_provisioner import node as azure_node
from .test_gcp_provisioner import node as gcp_node

pytestmark = pytest.mark.timeout(600)

READ_S = 15.0
"""Seconds after which a call that hangs is given up and repeated."""


def goes_on(control: Control, hanging: Callable[[], object], other: Callable[[], object]) -> bool:
    """Return whether `other` returns while the call of `hanging`, which begins earlier, is still unanswered."""
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(hanging)
        until(lambda: any(call.fault for call in control.calls()))
        assert pool.submit(other).result()
        is_held = not first.done()
        control.heal()
        assert first.result()
    return is_held


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Control]:
    with Aws() as made:
        for name, value in made.environ.items():
            monkeypatch.setenv(name, value)
        yield made.control


def test_aws_launches_elsewhere(aws: Control) -> None:
    provisioner = AwsProvisioner(session(), FastClock())
    elsewhere = replace(REQUEST, region="us-west-2", zone="usw2-az1", token="1" * 32)
    aws.fail("GetParameters", HANG, where={"region": "us-west-2"}, times=None)
    assert goes_on(aws, lambda: provisioner.launch(elsewhere), lambda: provisioner.launch(REQUEST))


@pytest.mark.parametrize("what", ["sizes", "images"])
def test_azure_looks_elsewhere(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(azure, "READ_S", READ_S)
    with Azure() as made:
        for name, value in made.environ(tmp_path).items():
            monkeypatch.setenv(name, value)
        clients = azure.Clients(FastClock())
        sizes, images = Sizes(clients), AzureImages(clients)

        def look(region: str) -> object:
            return sizes.of_region(region) if what == "sizes" else images.find(region, azure_node(machine_type=T4))

        made.control.fail("skus.*|versions.list", HANG)
        assert goes_on(made.control, lambda: look("westus2"), lambda: look("eastus"))


def test_gcp_looks_for_another_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloudgpu.provisioners.gcp.machine.images.READ_S", READ_S)
    with Gcp() as made:
        for name, value in made.environ(tmp_path).items():
            monkeypatch.setenv(name, value)
        images, control = GcpImages(gcp.Clients(FastClock())), GceControl(made.url)
        control.fail("images.getFromFamily", HANG)
        without = gcp_node(machine_type="e2-standard-4", accelerator=None)
        assert goes_on(control, lambda: images.find(gcp_node()), lambda: images.find(without))
