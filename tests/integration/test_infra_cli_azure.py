"""`cloudgpu infra` and `cloudgpu cluster` on Azure, from the command line to a job's end on a cluster's machine.

The tests run on a double of Pulumi's engine, and also on the real one where it is on PATH. Resource Manager is a
stand-in, and Blob Storage is Microsoft's own emulator.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudgpu.control.jobs import list_jobs
from cloudgpu.infra.azure.bucket import CONTAINER, account_name
from cloudgpu.provisioners.azure.names import group_id
from cloudgpu.provisioners.shared import infra_outputs
from cloudgpu.provisioners.stacks import clusters
from cloudgpu.tests.standins.azure import SUBSCRIPTION, Azure, AzureControl
from cloudgpu.tests.standins.azurite import KEY, Azurite
from cloudgpu.tests.standins.commands import Commands, in_a_process, stacks_can_be_made
from cloudgpu.tests.standins.local_jobs import state_directory
from cloudgpu.tests.standins.pulumi import azure as azure_provider

pytestmark = pytest.mark.timeout(900)

REGION = "eastus"
PLACE = ("--cloud", "azure", "--region", REGION)
DATA = f"cloudgpu-infra-azure-{REGION}-data"
ACCOUNT = account_name(group_id(SUBSCRIPTION, DATA))
"""The storage account that the stack creates. Azurite must know its accounts before it starts."""
STACKS = "stacks-of-a-team"
CLUSTER = """name: big
resources: {accelerator: "T4:1", cloud: azure, region: eastus, nodes: 1}
limits: {price: 5 USD/h}
"""


class Desk(Commands):
    """Runs commands, and gives access to the subscription that they change."""

    def __init__(self, azure: Azure, blobs: Azurite, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        super().__init__(capsys, folder)
        self.azure: AzureControl = azure.control
        self.blobs = blobs
        self.backend = f"azblob://{STACKS}?storage_account={ACCOUNT}&domain=127.0.0.1:{blobs.port}&protocol=https"
        self.blobs.make_container(STACKS)

    def machines(self) -> list[str]:
        """Return the names of the machines that exist."""
        return [one.name for one in self.azure.instances() if one.status in ("creating", "running")]


@pytest.fixture
def desk(
    engine_kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Desk]:
    with Azure(boot=True) as azure, Azurite(tmp_path, azure.certificate, ACCOUNT) as blobs:
        for name, value in {**azure.environ(tmp_path / "keys"), **blobs.environ()}.items():
            monkeypatch.setenv(name, value)
        with stacks_can_be_made(engine_kind, azure_provider.provider(), tmp_path, monkeypatch):
            yield Desk(azure, blobs, capsys, tmp_path)


@pytest.mark.on_engine
def test_a_job_on_a_cluster_from_nothing_to_nothing(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stacks are in a container that a team shares, opened with its account's key."""
    monkeypatch.setenv("CLOUDGPU_INFRA_BACKEND", desk.backend)
    monkeypatch.setenv("AZURE_STORAGE_KEY", KEY)
    monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", "")
    with state_directory(desk.folder / "home", monkeypatch):
        seen = desk.well("infra", "preview", *PLACE, "--json").json
        assert set(seen["counts"]) == {"create"}
        assert desk.azure.all_resources() == []
        made = desk.well("infra", "up", *PLACE, "--yes", "--json").json
        assert made["counts"] == seen["counts"]
        known = infra_outputs.load("azure", REGION)
        assert known is not None
        assert known.job_dir == f"az://{CONTAINER}@{ACCOUNT}/jobs"
        desk.blobs.make_container(CONTAINER)  # Resource Manager created it, which Azurite does not know

        with desk.as_colleague():
            status = desk.well("infra", "status", *PLACE, "--backend", desk.backend, "--json").json
            assert status["infrastructure"] == known.to_json()

        file = desk.file("cluster.yaml", CLUSTER)
        up = desk.well("cluster", "up", file, "--yes", "--json").json["cluster"]
        assert (up["fleet"]["size"], up["fleet_dir"]) == (1, f"{known.job_dir}/fleets/big")
        job = desk.file("code/job.yaml", "name: turn\nresources: {accelerator: T4}\nrun: echo it ran\n")
        done = in_a_process("submit", job, "--cluster", "big")
        assert done.code == 0, done.err
        assert "it ran" in done.out.splitlines()
        assert [one.state for one in list_jobs()] == ["succeeded"]

        assert len(desk.machines()) == 1
        assert desk.well("cluster", "scale", "big", "2", "--yes", "--json").json["cluster"]["fleet"]["size"] == 2
        desk.until(lambda: len(desk.machines()) == 2)
        desk.well("cluster", "scale", "big", "0", "--yes")
        desk.until(lambda: desk.machines() == [])
        assert desk.run("infra", "down", *PLACE, "--yes").code == 4
        desk.well("cluster", "down", "big", "--yes")
        assert clusters.load_all() == []

        assert desk.blobs.blobs(CONTAINER, "jobs/")
        desk.well("infra", "down", *PLACE, "--yes", "--delete-bucket", "--yes-delete-bucket", ACCOUNT)
        assert (infra_outputs.load_all(), desk.azure.all_resources()) == ([], [])
        assert not [name for name in desk.blobs.blobs(STACKS) if name.endswith(".json")], "no stack, lock or history"
