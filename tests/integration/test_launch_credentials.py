"""Credentials are rejected at any call of a launch, on every cloud: nothing is left that the store does not know.

An undisturbed launch shows the calls. Then, for each of them, credentials are rejected from that call on: either once,
with the next token accepted, or until the next login. After that the store has only the error's message and the
launch's token. With these the launch is repeated or terminated, and nothing may be left.

The ordinary run tries a few calls: the first, the last, and some that create something. With CLOUDGPU_LONG=1 it tries
all of them, for one node and two, and also launches into reservations, into flex-start's queue and of groups.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fnmatch import fnmatchcase
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.control.supervisor.supervisor import Supervisor
from cloudgpu.jobspecs.plan import Offer, RoleOffer
from cloudgpu.protocol.jobdir import JOB_KEY, JobDir, JobRecord, local_url
from cloudgpu.provisioners import Allocation, LaunchRequest, ProvisionError
from cloudgpu.provisioners.azure.provisioner import AzureProvisioner
from cloudgpu.provisioners.base import Provisioner
from cloudgpu.tests.standins.aws import Aws
from cloudgpu.tests.standins.azure import Azure
from cloudgpu.tests.standins.azure.jobs import azure_with_blobs
from cloudgpu.tests.standins.azurite import ACCOUNT
from cloudgpu.tests.standins.clocks import FastClock
from cloudgpu.tests.standins.control import World, make_job, make_policy, make_template
from cloudgpu.tests.standins.faults import Call, Control, Fault, error
from cloudgpu.tests.standins.gce.control import GceControl
from cloudgpu.tests.standins.gcp import Gcp
from cloudgpu.tests.standins.gcp.stacks import create_stack
from cloudgpu.tests.standins.gcs.control import GcsControl
from cloudgpu.tests.standins.long_mode import LONG
from cloudgpu.tests.standins.vertex.control import VertexControl

from . import test_aws_provisioner as aws_tests
from . import test_azure_grouped as azure_groups
from . import test_azure_provisioner as azure_tests
from . import test_gcp_groups as gcp_groups
from . import test_gcp_provisioner as gcp_tests
from . import test_vertex_provisioner as vertex_tests


@dataclass(frozen=True)
class Cloud:
    """A target with its stand-in."""

    name: str
    control: Control
    another: Callable[[], Provisioner]
    """Return a provisioner without cached state, like that of another process."""
    request: Callable[[int], LaunchRequest]
    """Return the launch request for a number of nodes."""
    left: Callable[[], object]
    """Return the resources that the launch left; empty if there are none."""
    refusals: Mapping[str, Fault]
    """Service -> how it rejects credentials that were valid before."""
    looks: tuple[str, ...]
    """Patterns of actions that create nothing."""
    prepare: Callable[[], object] = lambda: None
    """Create the resources that exist before a launch."""

    def calls(self) -> list[Call]:
        return self.control.calls()

    def unknown(self, nodes: int) -> Allocation:
        """Return what the store knows about a launch without an answer."""
        request = self.request(nodes)
        return Allocation(
            self.name,
            request.job_id,
            request.attempt,
            request.token,
            {},
            region=request.region,
            owner=request.owner.name,
        )


Started = tuple[Cloud, Mapping[str, str]]
"""A target, and the environment variables that lead to its stand-in."""
DENIED = error("ExpiredToken", 400, "The security token included in the request is expired")


@pytest.fixture(scope="module")
def aws() -> Iterator[Started]:
    with Aws() as server:

        def request(nodes: int) -> LaunchRequest:
            return aws_tests.request(*(aws_tests.node(f"worker-{rank}.1", rank=rank) for rank in range(nodes)))

        looks = ("Describe*", "Get*", "List*")
        yield (
            Cloud("aws", server.control, aws_tests.another, request, aws_tests.left, {"*": DENIED}, looks),
            (server.environ),
        )


@pytest.fixture(scope="module")
def google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gcp, Mapping[str, str]]]:
    with Gcp() as server:
        yield server, server.environ(tmp_path_factory.mktemp("keys"))


GOOGLE = {
    "oauth2": error("invalid_grant", 400, "Token has been expired or revoked."),
    "!oauth2": error("authError", 401, "Invalid Credentials"),
}


GCP_LOOKS = ("*.get", "*.list", "*.aggregatedList", "*.getFromFamily", "token")


def on_gcp(google: tuple[Gcp, Mapping[str, str]], machine_type: str = gcp_tests.T4, **changes: Any) -> Started:
    """Return the target gcp; `changes` are fields of the launch request."""
    server, environ = google
    control = GceControl(server.url)

    def request(nodes: int) -> LaunchRequest:
        accelerator = "L4" if machine_type.startswith("g2") else "T4"
        wanted = [gcp_tests.node(f"worker-{rank}.1", machine_type, rank, accelerator) for rank in range(nodes)]
        return gcp_tests.request(*wanted, **changes)

    def prepare() -> None:
        if changes.get("market") == "reservation":
            control.reserve("mine", machine_type, "us-central1-f", 2, accelerator="nvidia-tesla-t4", count=1)

    def left() -> object:
        return gcp_tests.left(control)

    return Cloud("gcp", server.control, gcp_tests.another, request, left, GOOGLE, GCP_LOOKS, prepare), environ


@pytest.fixture
def gcp(google: tuple[Gcp, Mapping[str, str]]) -> Started:
    return on_gcp(google)


@pytest.fixture
def gcp_reservation(google: tuple[Gcp, Mapping[str, str]]) -> Started:
    return on_gcp(google, market="reservation", zone=None)


@pytest.fixture
def gcp_flex_start(google: tuple[Gcp, Mapping[str, str]]) -> Started:
    return on_gcp(google, "g2-standard-4", market="flex-start")


@pytest.fixture
def gcp_group(google: tuple[Gcp, Mapping[str, str]], tmp_path: Path) -> Started:
    server, environ = google
    control = GceControl(server.url)

    def request(nodes: int) -> LaunchRequest:
        return gcp_groups.request(nodes)

    def prepare() -> None:
        GcsControl(server.url).make_bucket(gcp_groups.BUCKET)
        create_stack(control, f"gs://{gcp_groups.BUCKET}/jobs")
        JobDir(gcp_groups.JOB_DIR).put("agent/abc.pyz", b"an agent")

    def left() -> object:
        return gcp_groups.left(control)

    looks = (*GCP_LOOKS, "storage.objects.*", "objects.*")
    found = Cloud("gcp", server.control, gcp_groups.another, request, left, GOOGLE, looks, prepare)
    return found, {**environ, "CLOUDGPU_HOME": str(tmp_path / "home")}


@pytest.fixture
def vertex(google: tuple[Gcp, Mapping[str, str]]) -> Started:
    server, environ = google

    def request(nodes: int) -> LaunchRequest:
        return vertex_tests.request(*(vertex_tests.node(f"worker-{rank}.1", rank=rank) for rank in range(nodes)))

    def left() -> object:
        return [job.name for job in VertexControl(server.control).jobs() if job.alive]

    looks = ("*.get", "*.list", "*.search", "token")
    settings = {**environ, "CLOUDGPU_VERTEX_TRANSPORT": "rest"}
    return Cloud("vertex", server.control, vertex_tests.another, request, left, GOOGLE, looks), settings


AZURE = {
    "login": error("invalid_client", 401, "AADSTS7000215: Invalid client secret provided."),
    "!login": error("ExpiredAuthenticationToken", 401, "The access token has expired."),
}
AZURE_LOOKS = ("*.list", "*.read", "*.usages", "*.instanceView", "*.versions", "token")


@pytest.fixture(scope="module")
def subscription(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Azure, Mapping[str, str]]]:
    with Azure() as server:
        yield server, server.environ(tmp_path_factory.mktemp("azure"))


def on_azure(subscription: tuple[Azure, Mapping[str, str]], **changes: Any) -> Started:
    """Return the target azure; `changes` are fields of the launch request."""
    server, environ = subscription

    def request(nodes: int) -> LaunchRequest:
        return azure_tests.request(*azure_tests.pair()[:nodes], **changes)

    def prepare() -> None:
        server.control.do("add_storage", account=azure_tests.ACCOUNT, group="storage", region="eastus")
        if changes.get("market") == "reservation":
            azure_tests.reserve("fitting", azure_tests.T4, 2, zone="2")

    def left() -> object:
        return azure_tests.left(server.control)

    return Cloud("azure", server.control, azure_tests.another, request, left, AZURE, AZURE_LOOKS, prepare), environ


@pytest.fixture
def azure(subscription: tuple[Azure, Mapping[str, str]]) -> Started:
    return on_azure(subscription)


@pytest.fixture
def azure_reservation(subscription: tuple[Azure, Mapping[str, str]]) -> Started:
    return on_azure(subscription, market="reservation")


@pytest.fixture
def azure_group(tmp_path: Path) -> Iterator[Started]:
    """Yield the target azure with its job dir in Azurite, which accepts every token."""
    with azure_with_blobs(tmp_path, boot=False) as (control, environ):
        desks: list[azure_groups.Desk] = []

        def prepare() -> None:
            control.add_storage(ACCOUNT)
            desks[:] = [azure_groups.Desk(control, tmp_path)]

        def another() -> AzureProvisioner:
            return AzureProvisioner(FastClock())

        def request(nodes: int) -> LaunchRequest:
            return desks[0].asked(nodes)

        def left() -> object:
            return desks[0].remains.find()

        found = Cloud("azure", control, another, request, left, AZURE, AZURE_LOOKS, prepare)
        yield found, {**environ, "CLOUDGPU_HOME": str(tmp_path / "home")}


OTHERS = ["gcp_reservation", "gcp_flex_start", "gcp_group", "azure_reservation", "azure_group"]
"""Fixtures for other kinds of launches."""


@pytest.fixture(params=["aws", "gcp", "vertex", "azure", *(OTHERS if LONG else ())])
def cloud(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    found, environ = request.getfixturevalue(request.param)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    renew(found)
    return found  # type: ignore[no-any-return]


def renew(cloud: Cloud) -> None:
    """Remove all resources and faults from the stand-in, and create what exists before a launch."""
    cloud.control.reset()
    cloud.prepare()
    cloud.control.forget()


def calls_of(cloud: Cloud, nodes: int) -> list[Call]:
    """Return the calls of an undisturbed launch."""
    cloud.another().launch(cloud.request(nodes))
    found = cloud.calls()
    renew(cloud)
    return found


def chosen(cloud: Cloud, calls: list[Call]) -> list[Call]:
    """Return the calls at which credentials are rejected: all in the long mode, otherwise a few."""
    if LONG:
        return calls
    making = [call for call in calls if not any(fnmatchcase(call.action, look) for look in cloud.looks)]
    return [call for call in calls if call in (calls[0], making[0], making[len(making) // 2], making[-1])]


def was_refused(cloud: Cloud, call: Call) -> bool:
    """Return whether a launch has reached this call. How often it polls depends on the speed of the stand-in."""
    made = cloud.calls()
    refused = any(one.fault for one in made)
    expect(refused or len(made) < call.number, cloud, call)
    return refused


def expect(condition: object, cloud: Cloud, call: Call, detail: object = "") -> None:
    story = [f"{one.number} {one.service} {one.action} {one.status} {one.fault}" for one in cloud.calls()]
    assert condition, f"{call.number} {call.service} {call.action}: {detail}\n" + "\n".join(story)


@pytest.mark.parametrize("nodes", [1, 2] if LONG else [2])
def test_one_refusal_of_a_token_ends_no_launch(cloud: Cloud, nodes: int) -> None:
    for call in chosen(cloud, calls_of(cloud, nodes)):
        cloud.control.log_out(cloud.refusals, call.number, once=call.service)
        made = cloud.another().launch(cloud.request(nodes))
        expect(len(made.machines) == nodes, cloud, call)
        was_refused(cloud, call)
        cloud.another().terminate(made)
        expect(not cloud.left(), cloud, call, cloud.left())
        renew(cloud)


@pytest.mark.parametrize("then", ["repeated", "ended"])
@pytest.mark.parametrize("nodes", [1, 2] if LONG else [2])
def test_nothing_is_forgotten_when_credentials_go_bad(cloud: Cloud, nodes: int, then: str) -> None:
    """Until the next login nothing else can be done, whether that takes half a minute or a week."""
    for call in chosen(cloud, calls_of(cloud, nodes)):
        cloud.control.log_out(cloud.refusals, call.number)
        raised = None
        try:
            cloud.another().launch(cloud.request(nodes))
        except ProvisionError as error:
            raised = error
        if not was_refused(cloud, call):
            renew(cloud)
            continue
        assert raised is not None
        expect(raised.is_login, cloud, call, f"{raised.error_class} {raised}")
        with pytest.raises(ProvisionError) as later:
            cloud.another().terminate(cloud.unknown(nodes))
        expect(later.value.error_class in ("auth", "expired"), cloud, call, later.value)
        cloud.control.heal()
        expect(raised.may_have_created or not cloud.left(), cloud, call, f"{raised}: {cloud.left()}")
        if then == "repeated":
            made = cloud.another().launch(dataclasses.replace(cloud.request(nodes), may_be_retry=True))
            expect(len(made.machines) == nodes, cloud, call)
            cloud.another().terminate(made)
        else:
            cloud.another().terminate(cloud.unknown(nodes))
        expect(not cloud.left(), cloud, call, cloud.left())
        renew(cloud)


# -- under a supervisor


@dataclass
class Supervised:
    """A job of two machines on AWS, in a separate store, with a clock that the test moves. Its job dir is a folder,
    because no machine boots."""

    cloud: Cloud
    world: World
    jobs: int = 0

    def submit(self) -> str:
        role = RoleOffer("worker", 2, "g4dn.xlarge", "T4", Fraction(1), 4, 16.0, Decimal("0.5"))
        price = Decimal(1)
        offer = Offer("aws", "us-east-1", "use1-az1", "on-demand", (role,), 100.0, Decimal(0), price, "2026-01-01")
        self.jobs += 1
        job_id, record = f"digits-{self.jobs:08d}", JobRecord(job_id="digits", name="digits", run="true").to_bytes()
        self.folder(job_id).put(JOB_KEY, record)
        row = make_job(
            job_id,
            f"s3://{aws_tests.BUCKET}/jobs/{job_id}",
            [offer],
            now=self.world.clock.now(),
            policy=make_policy(agents={"x86_64": "a" * 64}, capacity_s=86_400),
            job_sha256=hashlib.sha256(record).hexdigest(),
        )
        self.world.store.insert_job(row, "submitted")
        return job_id

    def folder(self, url: str) -> JobDir:
        """Return the folder that is used instead of a job dir in the bucket."""
        return JobDir(local_url(self.world.folder / url.rpartition("/")[2]))

    def supervisor(self) -> Supervisor:
        provisioner = self.cloud.another()
        return Supervisor(
            self.world.store,
            clock=self.world.clock,
            provisioner=lambda _target: provisioner,
            open_dir=self.folder,
            owner="elsewhere/1/a",
        )

    def state(self, job_id: str) -> str:
        return self.world.attempts(job_id)[-1].state

    def check(self, call: Call, *, ended: bool) -> None:
        """Reject credentials from this call on, let the job wait or cancel it, and then log in again."""
        cloud, world, job_id, supervisor = self.cloud, self.world, self.submit(), self.supervisor()
        cloud.control.log_out(cloud.refusals, call.number)
        world.drive(supervisor, until=lambda: "run `aws sso login`" in world.job(job_id).reason, for_s=60)
        self.drive(supervisor, 40)
        assert self.state(job_id) == "launching", self.events(job_id)
        if ended:
            world.store.set_goal(job_id, "cancel", "cancel", world.clock.now())
            self.drive(supervisor, 40)
        cloud.control.heal()
        if ended:
            expect(self.state(job_id) == "terminating" or not cloud.left(), cloud, call, self.events(job_id))
        else:
            world.drive(supervisor, until=lambda: self.state(job_id) == "running", for_s=31)
            world.store.set_goal(job_id, "cancel", "cancel", world.clock.now())
        world.drive(supervisor, for_s=300)
        assert (world.job(job_id).state, len(world.attempts(job_id))) == ("cancelled", 1)
        expect(not cloud.left(), cloud, call, self.events(job_id))

    def drive(self, supervisor: Supervisor, seconds: float) -> None:
        """Drive the supervisor for `seconds`, or until no job is active."""
        with contextlib.suppress(AssertionError):
            self.world.drive(supervisor, for_s=seconds)

    def events(self, job_id: str) -> list[str]:
        return [event.message for event in self.world.store.events(job_id)]


@pytest.fixture
def supervised(aws: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Supervised:
    cloud, environ = aws
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    cloud.control.reset()
    return Supervised(cloud, World(tmp_path / "world", make_template(tmp_path)))


@pytest.mark.parametrize("ended", [False, True], ids=["goes on", "is cancelled"])
def test_a_supervisor_waits_for_a_login_and_forgets_nothing(supervised: Supervised, ended: bool) -> None:
    calls = calls_of(supervised.cloud, 2)
    for call in calls if LONG else calls[-1:]:
        renew(supervised.cloud)
        supervised.check(call, ended=ended)
