"""docs/reference/gcp-permissions.md, enforced over the wire: its roles suffice, and every permission in them is needed.

The roles are parsed from the page. Every permission belongs to the step that needs it: without the permission, that
step fails and names it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml

import cloudgpu
from cloudgpu.infra.gcp.role import SECRET_ACCESSOR
from cloudgpu.protocol.jobdir import JobDir, JobDirError
from cloudgpu.provisioners import AgentFile, Allocation, LaunchRequest, NodeRequest, Owner, ProvisionError
from cloudgpu.provisioners.gcp.account import Account
from cloudgpu.provisioners.gcp.catalog import quotas
from cloudgpu.provisioners.gcp.catalog import refresh as catalog
from cloudgpu.provisioners.gcp.clients import Clients
from cloudgpu.provisioners.gcp.lifecycle import gc
from cloudgpu.provisioners.gcp.provisioner import GcpProvisioner
from cloudgpu.provisioners.gcp.rest import Rest
from cloudgpu.provisioners.vertex.provisioner import VertexProvisioner
from cloudgpu.runtime.secrets.api import Patience
from cloudgpu.runtime.secrets.references import SecretError, read_secret
from cloudgpu.tests.standins.clocks import FastClock
from cloudgpu.tests.standins.faults import error
from cloudgpu.tests.standins.gce.control import GceControl
from cloudgpu.tests.standins.gcp import MACHINE, PROJECT, SUBMITTER, Gcp
from cloudgpu.tests.standins.gcp.stacks import create_stack
from cloudgpu.tests.standins.gcs.control import GcsControl

PAGE = Path(cloudgpu.__file__).parent / "docs" / "reference" / "gcp-permissions.md"
BUCKET = "my-bucket"
TOKEN = "0123456789abcdef" * 2
REGION, ZONE = "us-central1", "us-central1-a"
ACT_AS = "iam.serviceAccounts.actAs"


def roles() -> dict[str, set[str]]:
    """Return the roles of the page: title -> permissions."""
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    found = [yaml.safe_load(block) for block in blocks]
    assert all(set(role) == {"title", "stage", "includedPermissions"} for role in found)
    assert all(role["includedPermissions"] == sorted(set(role["includedPermissions"])) for role in found)
    return {role["title"]: set(role["includedPermissions"]) for role in found}


LAUNCH, VERTEX, CATALOG, JOBS, MACHINES = roles().values()
EVERYWHERE = LAUNCH | VERTEX | CATALOG
OURS = ("instances", "disks", "firewalls", "instanceTemplates", "resourcePolicies", "regionInstanceGroupManagers")


@dataclasses.dataclass
class World:
    """The stand-in's project and its IAM policy."""

    control: GceControl
    folder: Path
    environ: Callable[[str], dict[str, str]]

    def permit(self, without: str = "") -> None:
        """Grant the submitter the page's roles except one permission, and the machines their roles."""
        in_bucket = {"permissions": sorted(JOBS - {without}), "where": f"projects/_/buckets/{BUCKET}*"}
        self.control.enforce(
            {
                SUBMITTER: [
                    {"permissions": sorted(EVERYWHERE - {without})},
                    {"permissions": sorted({ACT_AS} - {without}), "where": MACHINE},
                    in_bucket,
                ],
                MACHINE: [
                    in_bucket,
                    {"permissions": sorted(MACHINES), "where": f"projects/{PROJECT}/zones/*/instances/cloudgpu-*"},
                ],
            }
        )

    def left(self) -> list[str]:
        """Return the names of cloudgpu's resources, except the shared firewall rule, which stays."""
        return [
            str(one["name"])
            for kind in OURS
            for one in self.control.resources(kind)
            if str(one["name"]).startswith("cloudgpu-") and "closed" not in str(one["name"])
        ]


@pytest.fixture(scope="module")
def server() -> Iterator[Gcp]:
    with Gcp() as gcp:
        yield gcp


@pytest.fixture
def world(server: Gcp, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    server.control.reset()
    environ = server.environ(tmp_path)
    for name, value in {**environ, "CLOUDGPU_HOME": str(tmp_path / "home")}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "home" / "catalog").mkdir(parents=True)
    GcsControl(server.url).make_bucket(BUCKET)
    quotas._say_once.cache_clear()
    yield World(GceControl(server.url), tmp_path, lambda email: server.environ(tmp_path, email))
    server.control.enforce(None)


# --- steps ------------------------------------------------------------------------------------------------------------


def node(index: int = 0, machine_type: str = "n1-standard-4", accelerator: str = "T4", count: int = 1) -> NodeRequest:
    return NodeRequest(f"worker-{index}.1", "worker", index, index, machine_type, accelerator, Fraction(count))


def request(**changes: Any) -> LaunchRequest:
    base = LaunchRequest(
        job_id="digits-k3v9x2ma",
        attempt=1,
        token=TOKEN,
        owner=Owner("cloudgpu-tester"),
        job_dir=f"gs://{BUCKET}/jobs/digits-k3v9x2ma",
        job_sha256="0" * 64,
        region=REGION,
        zone=ZONE,
        market="spot",
        disk_gb=100.0,
        nodes=(node(0), node(1)),
        lifetime_s=3_600,
        expires=2_000_000_000.0,
        agent=AgentFile("agent/abc.pyz", "a" * 64, "x86_64"),
    )
    return dataclasses.replace(base, **changes)


@contextlib.contextmanager
def complaints(found: list[str]) -> Iterator[None]:
    try:
        yield
    except (ProvisionError, JobDirError) as error:
        found.append(str(error))


def launched() -> Allocation:
    """Return the allocation as a process knows it that did not make the launch."""
    return Allocation("gcp", "digits-k3v9x2ma", 1, TOKEN, {}, region=REGION, owner="cloudgpu-tester")


def launch(world: World) -> list[str]:
    found: list[str] = []
    with complaints(found):
        GcpProvisioner(FastClock()).launch(request())
    return found


def launch_reserved(world: World) -> list[str]:
    found: list[str] = []
    with complaints(found):
        GcpProvisioner(FastClock()).launch(request(market="reservation", nodes=(node(0),)))
    return found


def launch_group(world: World) -> list[str]:
    """Launch a group of machines that are placed together."""
    create_stack(world.control, f"gs://{BUCKET}/jobs", MACHINE)
    found: list[str] = []
    with complaints(found):
        asked = request(nodes=tuple(node(at, "a2-highgpu-1g", "A100-40GB") for at in range(2)), grouped=True)
        assert asked.agent is not None
        JobDir(asked.job_dir).put(asked.agent.key, b"an agent")
        GcpProvisioner(FastClock()).launch(asked)
    return found


def observe(world: World) -> list[str]:
    found: list[str] = []
    with complaints(found):
        allocation = dataclasses.replace(launched(), machines={"worker-0.1": f"{ZONE}/cloudgpu-gone"})
        GcpProvisioner(FastClock()).observe(allocation)
    return found


def explain(world: World) -> list[str]:
    """Explain a running machine, right after its launch."""
    provisioner, found = GcpProvisioner(FastClock()), list[str]()
    with complaints(found):
        provisioner.explain(provisioner.launch(request()), "worker-0.1")
    return found


def terminate(world: World) -> list[str]:
    found: list[str] = []
    with complaints(found):
        GcpProvisioner(FastClock()).terminate(launched())
    return found


def end_where_a_zone_cannot_be_listed(world: World) -> list[str]:
    """Terminate while aggregated lists fail, so that the launch's region is listed instead."""
    broken = error("backendError", 503, "us-moon1-a cannot be listed")
    world.control.fail("*.aggregatedList", broken, times=None)
    try:
        return terminate(world)
    finally:
        world.control.heal()


def check_quota(world: World) -> list[str]:
    clock = FastClock()
    nodes = [node(0), node(1, "a3-highgpu-8g", "H100-80GB", 8)]
    quotas.check(Rest(Account(clock), clock), region=REGION, market="on-demand", nodes=nodes)
    return []


def collect_all(world: World) -> list[str]:
    clients = Clients(FastClock())
    found: list[str] = []
    with complaints(found):
        looked = gc.find([REGION], clients)
        found += looked.failed.values()
        for left in looked.leftovers:
            with complaints(found):
                gc.remove(left, clients)
    return found


def refresh(world: World) -> list[str]:
    found: list[str] = []
    with complaints(found):
        clock = FastClock()
        outcomes = list(catalog.refresh([REGION], lambda _done, _of: None, Account(clock), clock))
        found += [outcome.reason for outcome in outcomes if outcome.state == "kept"]
    return found


def run_on_vertex(world: World) -> list[str]:
    found: list[str] = []
    with complaints(found):
        vertex = VertexProvisioner(FastClock())
        vertex_request = request(zone=None, nodes=(node(0), node(1)))
        allocation = vertex.launch(vertex_request)
        vertex.observe(allocation)
        vertex.terminate(allocation)
        vertex.observe(allocation)  # as a supervisor does before it reports the machines gone
    return found


def use_job_dir(world: World) -> list[str]:
    found: list[str] = []
    with complaints(found):
        job_dir = JobDir(f"gs://{BUCKET}/jobs/digits-k3v9x2ma")
        job_dir.put("job.json", b"{}")
        assert job_dir.find("job.json") == b"{}"
        assert job_dir.list("") == ["job.json"]
        job_dir.delete("job.json")
        large = world.folder / "large"
        large.write_bytes(bytes(20 << 20))
        job_dir.put("checkpoint", large)
    return found


STEPS: dict[str, tuple[Callable[[World], list[str]], str]] = {
    "launch": (
        launch,
        """compute.disks.create compute.disks.setLabels compute.firewalls.create compute.firewalls.get
        compute.globalOperations.list compute.instances.create compute.instances.list
        compute.instances.setLabels compute.instances.setMetadata compute.instances.setServiceAccount
        compute.instances.setTags compute.networks.get compute.networks.updatePolicy compute.subnetworks.list
        compute.subnetworks.use compute.subnetworks.useExternalIp compute.zoneOperations.get""",
    ),
    "launch into a reservation": (launch_reserved, "compute.reservations.list"),
    "launch a group": (
        launch_group,
        """compute.instanceGroupManagers.create compute.instanceGroupManagers.get compute.instanceGroups.create
        compute.instanceTemplates.create compute.instanceTemplates.useReadOnly compute.resourcePolicies.create
        compute.resourcePolicies.use""",
    ),
    "observe": (observe, ""),
    "explain": (explain, "compute.instances.getSerialPortOutput"),
    "terminate": (
        terminate,
        """compute.disks.list compute.firewalls.delete compute.globalOperations.get compute.instanceGroupManagers.list
        compute.instanceTemplates.list compute.instances.delete compute.resourcePolicies.list""",
    ),
    "terminate a group": (
        terminate,
        """compute.instanceGroupManagers.delete compute.instanceGroups.delete compute.instanceTemplates.delete
        compute.regionOperations.get compute.resourcePolicies.delete""",
    ),
    "end where a zone cannot be listed": (
        end_where_a_zone_cannot_be_listed,
        "compute.regionOperations.list compute.zoneOperations.list",
    ),
    "quota": (check_quota, "cloudquotas.quotas.get compute.projects.get compute.regions.get"),
    "gc": (
        collect_all,
        "compute.disks.delete compute.disks.get compute.firewalls.list compute.instances.get compute.regions.list",
    ),
    "catalog": (refresh, "compute.acceleratorTypes.list compute.machineTypes.list"),
    "vertex": (
        run_on_vertex,
        """aiplatform.customJobs.cancel aiplatform.customJobs.create aiplatform.customJobs.get
        aiplatform.customJobs.list""",
    ),
    "job dir": (
        use_job_dir,
        """storage.multipartUploads.create storage.objects.create storage.objects.delete storage.objects.get
        storage.objects.list""",
    ),
}
UNTESTED = {"aiplatform.customJobs.delete", "storage.multipartUploads.abort"}
"""Needed only for cleanup after failures. Nothing fails without them: the leftovers are informative or cost little."""
WARN_ONLY = {"quota"}
"""Steps that continue without the permission and log a warning."""
PREPARED = {"terminate", "terminate a group", "end where a zone cannot be listed", "gc"}


def prepare(world: World, step: str = "") -> None:
    """Launch machines for the step."""
    assert (launch_group if step == "terminate a group" else launch)(world) == []


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return cloudgpu's warnings. google-auth logs others, because it queries Google about the test's account in the
    background."""
    return [
        record.message
        for record in caplog.records
        if record.levelno >= logging.WARNING and record.name.startswith("cloudgpu")
    ]


def run(world: World, step: str, without: str = "") -> list[str]:
    if step in PREPARED:
        prepare(world, step)
    world.control.set_times(operation=0.5)  # makes the step wait for its operations
    world.permit(without)
    return STEPS[step][0](world)


def test_every_permission_of_the_page_belongs_to_a_step() -> None:
    everything = [permission for _, listed in STEPS.values() for permission in listed.split()]
    assert {*everything} | UNTESTED == EVERYWHERE | JOBS
    assert len(everything) == len(set(everything))
    assert {"compute.instances.delete"} == MACHINES


@pytest.mark.parametrize("step", STEPS)
def test_with_the_roles_everything_works(world: World, step: str, caplog: pytest.LogCaptureFixture) -> None:
    found = run(world, step)
    if step == "launch into a reservation":  # no reservation exists, and the error says so
        assert len(found) == 1 and "no reservation of" in found[0]
        return
    assert found == []
    assert step not in WARN_ONLY or warnings(caplog) == []
    if step in PREPARED:
        assert world.left() == []


@pytest.mark.parametrize(
    ("step", "permission"), [(step, one) for step, (_, listed) in STEPS.items() for one in listed.split()]
)
def test_without_a_permission_its_step_names_it(
    world: World, step: str, permission: str, caplog: pytest.LogCaptureFixture
) -> None:
    found = run(world, step, permission)
    found += warnings(caplog) if step in WARN_ONLY else []
    assert found, f"{step} works without {permission}: it is too much"
    naming = [one for one in found if permission in one]
    assert naming, found
    assert "docs/reference/gcp-permissions.md" in naming[0]
    if step in {"launch", "launch a group"}:
        world.permit()
        assert terminate(world) == []
        assert world.left() == []


@pytest.mark.parametrize("step", ["launch", "launch a group", "vertex"])
def test_a_launch_needs_permission_to_use_the_machines_account(world: World, step: str) -> None:
    [complaint] = run(world, step, ACT_AS)
    assert ACT_AS in complaint and "docs/reference/gcp-permissions.md" in complaint


def test_a_submitter_cannot_use_another_account_for_machines(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    admin = f"admin@{PROJECT}.iam.gserviceaccount.com"
    world.control.add_account(admin)
    monkeypatch.setenv("CLOUDGPU_GCP_SERVICE_ACCOUNT", admin)
    [complaint] = run(world, "launch")
    assert ACT_AS in complaint


# --- the machines -----------------------------------------------------------------------------------------------------


def delete_instance(world: World, name: str) -> None:
    import google.auth
    from google.cloud import compute_v1

    credentials, project = google.auth.default()
    client = compute_v1.InstancesClient(credentials=credentials, client_options={"api_endpoint": world.control.url})
    client.delete_unary(project=project, zone=ZONE, instance=name, timeout=180)


def test_a_machine_may_use_the_bucket_and_delete_machines_of_ours_and_nothing_else(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from google.api_core.exceptions import Forbidden

    prepare(world)
    GcsControl(world.control.url).make_bucket("other-bucket")
    world.permit()
    for name, value in world.environ(MACHINE).items():
        monkeypatch.setenv(name, value)
    assert use_job_dir(world) == []
    with pytest.raises(JobDirError, match=r"storage\.objects\.create"):
        JobDir("gs://other-bucket/jobs/digits").put("job.json", b"{}")
    delete_instance(world, f"cloudgpu-{TOKEN[:16]}-worker-0-1")
    with pytest.raises(Forbidden, match=r"compute\.instances\.delete"):
        delete_instance(world, "database")
    [complaint] = launch(world)
    assert "compute." in complaint
    assert "compute.instances.list" in observe(world)[0]


def test_a_machine_reads_the_secrets_whose_policy_names_its_account(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The permission that the page names is needed, on the secret alone, and suffices."""
    [permission] = set(re.findall(r"`(secretmanager\.[\w.]+)`", PAGE.read_text()))
    assert SECRET_ACCESSOR in PAGE.read_text()
    for name in ("wandb", "other"):
        world.control.do("secretmanager/put", secret=name, value=f"value of {name}")
    for name, value in world.environ(MACHINE).items():
        monkeypatch.setenv(name, value)
    at_once = Patience(unready_s=0.0)
    world.control.enforce({MACHINE: [{"permissions": [permission], "where": f"projects/{PROJECT}/secrets/wandb/*"}]})
    assert read_secret("gcp-secretmanager://wandb", at_once) == "value of wandb"
    assert world.control.used() == {(MACHINE, permission)}
    with pytest.raises(SecretError, match=f"needs {permission} on projects/{PROJECT}/secrets/other") as caught:
        read_secret("gcp-secretmanager://other", at_once)
    assert "docs/reference/gcp-permissions.md" in str(caught.value)
