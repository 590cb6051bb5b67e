"""`cloudgpu infra` and `cloudgpu cluster`, from the command line to the stand-in of Google Cloud.

The tests run on a double of Pulumi's engine, and also on the real one where it is on PATH.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.cli.cluster import expiry as cluster_expiry
from cloudgpu.control.jobs import list_jobs
from cloudgpu.control.store.store import open_store
from cloudgpu.jobspecs.plan import Offer
from cloudgpu.protocol.fleet.folder import Fleet
from cloudgpu.provisioners.shared import infra_outputs
from cloudgpu.provisioners.stacks import clusters
from cloudgpu.tests.standins.commands import Commands, in_a_process, stacks_can_be_made
from cloudgpu.tests.standins.control import make_job
from cloudgpu.tests.standins.faults import error
from cloudgpu.tests.standins.gce.control import GceControl
from cloudgpu.tests.standins.gcp import Gcp
from cloudgpu.tests.standins.gcs.control import GcsControl
from cloudgpu.tests.standins.local_jobs import state_directory
from cloudgpu.tests.standins.pulumi import gcp as gcp_provider
from cloudgpu.tests.standins.pulumi.provider import Provider

pytestmark = pytest.mark.timeout(600)

REGION = "us-central1"
PLACE = ("--cloud", "gcp", "--region", REGION)
CLUSTER = """name: big
resources: {accelerator: "L4:1", cloud: gcp, region: us-central1, nodes: 2}
limits: {price: 5 USD/h}
"""


class Desk(Commands):
    """Runs commands, and gives access to the cloud that they change."""

    def __init__(self, gcp: Gcp, provider: Provider, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        super().__init__(capsys, folder)
        self.gce, self.gcs, self.provider = GceControl(gcp.url), GcsControl(gcp.url), provider

    def cluster_file(self, text: str = CLUSTER) -> str:
        return self.file("cluster.yaml", text)

    def networks(self) -> list[str]:
        return sorted(one["name"] for one in self.gce.resources("networks"))


@pytest.fixture
def desk(
    engine_kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> Iterator[Desk]:
    """Set up a desk; the parameter decides whether machines boot."""
    with Gcp(boot=getattr(request, "param", False)) as gcp:
        for name, value in gcp.environ(tmp_path / "keys").items():
            monkeypatch.setenv(name, value)
        provider = gcp_provider.provider()
        with stacks_can_be_made(engine_kind, provider, tmp_path, monkeypatch):
            yield Desk(gcp, provider, capsys, tmp_path)


@pytest.mark.on_engine
def test_infra_from_nothing_to_nothing(desk: Desk) -> None:
    seen = desk.well("infra", "preview", *PLACE, "--json").json
    assert set(seen["counts"]) == {"create"}
    assert seen["stack"] == "infra-gcp-us-central1"
    assert seen["findings"] == []
    assert desk.networks() == ["default"]
    assert infra_outputs.load_all() == []

    asked = desk.run("infra", "up", *PLACE)
    assert (asked.code, desk.networks()) == (2, ["default"])
    assert "--yes" in asked.err

    made = desk.well("infra", "up", *PLACE, "--yes", "--json").json
    assert made["counts"] == seen["counts"]
    known = infra_outputs.load("gcp", REGION)
    assert known is not None
    assert known.to_json() == made["infrastructure"]
    bucket = known.job_dir.removeprefix("gs://").removesuffix("/jobs")

    again = desk.well("infra", "up", *PLACE, "--json").json  # no confirmation is needed, because nothing changes
    assert again["counts"] == {}
    assert known.job_dir in desk.well("infra", "status").out
    infra_outputs.forget("gcp", REGION)
    assert desk.well("infra", "status", *PLACE, "--json").json["infrastructure"] == known.to_json()
    assert infra_outputs.load("gcp", REGION) == known

    down = desk.well("infra", "down", *PLACE, "--yes")
    assert bucket in down.err
    assert (desk.networks(), infra_outputs.load_all()) == (["default"], [])
    assert desk.gcs.objects(bucket) == {}
    assert desk.well("infra", "status", *PLACE, "--json").json["infrastructure"] is None

    assert desk.well("infra", "up", *PLACE, "--yes", "--json").json["infrastructure"]["job_dir"] == known.job_dir
    for wrong in ([], ["--yes-delete-bucket", "another"]):
        refused = desk.run("infra", "down", *PLACE, "--yes", "--delete-bucket", *wrong)
        assert (refused.code, f"--yes-delete-bucket {bucket}" in refused.err) == (2, True)
    assert infra_outputs.load("gcp", REGION) is not None
    twice = ("--delete-bucket", "--yes-delete-bucket", bucket)
    desk.provider.control.fail("Delete", error("SERVICE_UNAVAILABLE"), where={"type": "*:Bucket"})
    assert desk.run("infra", "down", *PLACE, "--yes", *twice).code == 6
    once = desk.run("infra", "down", *PLACE, "--yes")
    assert (once.code, "every checkpoint" in once.err, desk.gcs.objects(bucket)) == (4, True, {})
    desk.well("infra", "down", *PLACE, "--yes", *twice)
    with pytest.raises(AssertionError):
        desk.gcs.objects(bucket)
    assert desk.run("infra", "down", *PLACE, "--yes").code == 2


@pytest.mark.on_engine
def test_a_preview_compares_with_what_the_cloud_has(desk: Desk) -> None:
    """A resource deleted by hand is shown, without changing the stack or the cloud; scripts read the exit code."""
    desk.well("infra", "up", *PLACE, "--yes")
    watched = ("infra", "preview", *PLACE, "--expect-no-changes")
    assert desk.run(*watched).code == 0
    [rule] = [one["name"] for one in desk.gce.resources("firewalls") if "cloudgpu" in one["name"]]
    desk.gce.remove("firewalls", rule)
    drifted = desk.run(*watched, "--json")
    assert (drifted.code, drifted.json["counts"], len(drifted.json["changes"])) == (1, {"create": 1}, 1)
    assert drifted.json["unchanged"] > 5
    assert rule not in [one["name"] for one in desk.gce.resources("firewalls")]
    # A preview does not write the stack's state, which therefore still contains the rule.
    assert desk.well(*watched, "--no-refresh", "--json").json["counts"] == {}


@pytest.mark.on_engine
def test_a_team_shares_stacks_in_a_bucket(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.gcs.make_bucket("stacks-of-a-team", public=True)
    monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", "")
    shared = ("--backend", "gs://stacks-of-a-team/cloudgpu")
    made = desk.well("infra", "up", *PLACE, *shared, "--yes", "--json").json["infrastructure"]
    with desk.as_colleague():
        assert infra_outputs.load_all() == []
        assert desk.well("infra", "status", *PLACE, *shared, "--json").json["infrastructure"] == made
        assert infra_outputs.load("gcp", REGION) is not None
    assert list(desk.gcs.objects("stacks-of-a-team"))
    assert not (desk.folder / "home/infra/state").exists()


@pytest.mark.on_engine
def test_a_failure_in_the_middle_and_up_again(desk: Desk) -> None:
    desk.provider.control.fail(
        "Create", error("QUOTA_EXCEEDED", message="no more subnetworks"), where={"type": "*:Subnetwork"}
    )
    failed = desk.run("infra", "up", *PLACE, "--yes")
    assert failed.code == 6
    assert "(gcp:compute/subnetwork:Subnetwork): " in failed.err
    assert "no more subnetworks" in failed.err
    assert infra_outputs.load_all() == []
    desk.well("infra", "up", *PLACE, "--yes")
    assert len(desk.networks()) == 2


@pytest.mark.on_engine
def test_a_failure_in_the_middle_and_down_again(desk: Desk) -> None:
    """The bucket is deleted too, although no output names it yet."""
    desk.provider.control.fail("Create", error("QUOTA_EXCEEDED"), where={"type": "*:Subnetwork"})
    assert desk.run("infra", "up", *PLACE, "--yes").code == 6
    unnamed = desk.run("infra", "down", *PLACE, "--yes", "--delete-bucket")
    bucket = unnamed.err.partition("--yes-delete-bucket ")[2].split()[0]
    desk.well("infra", "down", *PLACE, "--yes", "--delete-bucket", "--yes-delete-bucket", bucket)
    assert desk.networks() == ["default"]
    with pytest.raises(AssertionError):
        desk.gcs.objects(bucket)


@pytest.mark.on_engine
def test_another_account_is_not_mixed_in(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.well("infra", "up", *PLACE, "--yes")
    file = desk.cluster_file()
    desk.well("cluster", "up", file, "--yes")
    with monkeypatch.context() as theirs:
        theirs.setenv("GOOGLE_CLOUD_PROJECT", "another-project")
        for words in (
            ["infra", "up", *PLACE],
            ["infra", "down", *PLACE],
            ["cluster", "up", file],
            ["cluster", "scale", "big", "3"],
            ["cluster", "extend", "big", "9d"],
            ["cluster", "down", "big"],
        ):
            refused = desk.run(*words, "--yes")
            assert (refused.code, "another-project" in refused.err) == (4, True), refused.err
    [known] = clusters.load_all()
    assert (known.fleet.size, _group(desk)["targetSize"]) == (2, 2)
    desk.well("cluster", "down", "big", "--yes")


@pytest.mark.on_engine
def test_a_bucket_that_exists_is_used_and_never_deleted(desk: Desk) -> None:
    desk.gcs.do("storage/make_bucket", name="my-own-bucket")
    made = desk.well("infra", "up", *PLACE, "--bucket", "my-own-bucket", "--yes", "--json").json
    assert made["infrastructure"]["job_dir"] == "gs://my-own-bucket/jobs"
    assert desk.well("infra", "up", *PLACE, "--json").json["counts"] == {}  # it is remembered
    assert desk.run("infra", "up", *PLACE, "--bucket", "yet-another", "--yes").code == 4
    assert desk.run("infra", "down", *PLACE, "--yes", "--delete-bucket").code == 2
    desk.well("infra", "down", *PLACE, "--yes")
    assert desk.gcs.objects("my-own-bucket") == {}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["infra", "up", "--cloud", "gcp", "--region", "us-centrel1"], 2, "us-central1"),
        (["infra", "up", *PLACE, "--bucket", "Not A Bucket"], 2, "cannot be the name of a bucket"),
        (["infra", "up", *PLACE, "--backend", "https://api.pulumi.com"], 2, "s3://BUCKET"),
        (["infra", "up", *PLACE, "--backend", "s3://team"], 2, "PULUMI_CONFIG_PASSPHRASE"),
        (["infra", "up", "--cloud", "local", "--region", REGION], 2, "local"),
        (["infra", "status", "--cloud", "gcp"], 2, "--region"),
        (["infra", "status", "--region", REGION], 2, "--cloud"),
        (["infra", "status", "--backend", "file:///nowhere"], 2, "--cloud"),
        (["cluster", "status", "../x"], 2, "'../x' cannot be the name of a cluster"),
        (["cluster", "scale", "../x", "1"], 2, "'../x' cannot be the name of a cluster"),
        (["cluster", "down", "Big"], 2, "'Big' cannot be the name of a cluster"),
        (["cluster", "scale", "big", "-1"], 2, "-1"),
        (["cluster", "scale", "big", "2"], 2, "no cluster big"),
        (["cluster", "down", "big"], 2, "no cluster big"),
    ],
)
def test_usage_errors(desk: Desk, words: Sequence[str], code: int, said: str) -> None:
    ended = desk.run(*words)
    assert (ended.code, said in ended.err) == (code, True), ended.err
    assert desk.networks() == ["default"]
    assert not (desk.folder / "home/infra/x").exists()


def test_without_pulumi_it_is_said_how_to_get_it(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    ended = desk.run("infra", "up", *PLACE, "--yes")
    assert ended.code == 6
    assert "--install-pulumi" in ended.err
    assert desk.networks() == ["default"]


def test_a_pulumi_that_cannot_be_downloaded(desk: Desk) -> None:
    """Run in a separate process, because urllib reads proxies only before its first use."""
    environ = {**os.environ, "PATH": "/nowhere", "https_proxy": "http://127.0.0.1:9", "no_proxy": "127.0.0.1"}
    command = [sys.executable, "-m", "cloudgpu", "infra", "preview", *PLACE, "--install-pulumi"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 6
    assert "could not be downloaded from get.pulumi.com" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (desk.folder / "home/infra/engine/bin").exists()


@pytest.mark.on_engine
def test_jobs_that_run_there_forbid_to_take_it_down(desk: Desk) -> None:
    desk.well("infra", "up", *PLACE, "--yes")
    offer = Offer("gcp", REGION, "us-central1-a", "spot", (), 100.0, None, None, None)
    open_store().insert_job(make_job("digits-1", "gs://elsewhere/digits-1", [offer], now=time.time()), "submitted")
    refused = desk.run("infra", "down", *PLACE, "--yes")
    assert (refused.code, "digits-1" in refused.err) == (4, True)
    assert infra_outputs.load("gcp", REGION) is not None
    desk.well("infra", "down", *PLACE, "--yes", "--while-jobs-run")


def test_errors_in_a_cluster_file_have_a_position(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "name: big\nresources: {acelerator: L4}\nheel: true\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    for word, shown in ((file := desk.cluster_file(text), file), ("-", "<stdin>")):
        ended = desk.run("cluster", "up", word)
        assert ended.code == 3
        assert f"{shown}:2:13: error:" in ended.err
        assert f"{shown}:3:1: error:" in ended.err


def test_a_cluster_needs_an_infra_stack(desk: Desk) -> None:
    ended = desk.run("cluster", "up", desk.cluster_file(), "--yes")
    assert ended.code == 4
    assert "cloudgpu infra up --cloud gcp --region us-central1" in ended.err
    dear = desk.run("cluster", "up", desk.cluster_file(CLUSTER.replace("5 USD", "0.1 USD")), "--yes", "--json")
    assert (dear.code, dear.json["cluster"], dear.json["offers"]) == (4, "big", [])
    assert "price-cap" in [one["rule"] for one in dear.json["refusals"]]


@pytest.mark.on_engine
def test_a_cluster_from_nothing_to_nothing(desk: Desk) -> None:
    desk.well("infra", "up", *PLACE, "--yes")
    file = desk.cluster_file()
    seen = desk.well("cluster", "up", file, "--dry-run", "--json").json
    assert float(seen["price_usd_h"]) > 0
    assert (seen["quota"], clusters.load_all()) == ("enough, according to the provider", [])

    made = desk.well("cluster", "up", file, "--yes", "--json").json
    known = clusters.load("big")
    assert known is not None
    assert known.to_json() == made["cluster"]
    assert (known.fleet.size, known.fleet.machine_type) == (2, "g2-standard-4")
    assert known.fleet_dir.endswith("/jobs/fleets/big")
    first = _template(desk)

    assert desk.well("cluster", "up", file, "--json").json["counts"] == {}
    scaled = desk.well("cluster", "scale", "big", "3", "--yes", "--json").json
    assert set(scaled["counts"]) == {"update"}
    assert (scaled["cluster"]["fleet"]["size"], _template(desk)) == (3, first)
    dear = desk.run("cluster", "scale", "big", "100", "--yes", "--json")
    assert (dear.code, "limits.price" in dear.err) == (4, True)
    assert [one["code"] for one in dear.json["findings"] if one["severity"] == "refused"] == ["price-cap"]

    bigger = desk.cluster_file(CLUSTER.replace("nodes: 2", "nodes: 3, disk: 200GB"))
    rolled = desk.well("cluster", "up", bigger, "--yes", "--json").json
    assert [one["code"] for one in rolled["findings"] if one["code"] == "rolling"] == ["rolling"]
    assert _template(desk) != first

    stands = desk.run("infra", "down", *PLACE, "--yes", "--json")
    assert (stands.code, "cloudgpu cluster down big" in stands.err) == (4, True)
    assert [one["code"] for one in stands.json["findings"]] == ["clusters-there"]
    assert "big" in desk.well("cluster", "status").out
    clusters.path_of("big").write_text("{")
    damaged = desk.run("cluster", "status")
    assert (damaged.code, "`cloudgpu cluster status big` writes it anew" in damaged.err) == (6, True)
    desk.well("cluster", "status", "big")
    assert "big" in desk.well("cluster", "status").out
    desk.well("cluster", "down", "big", "--yes")
    assert (clusters.load_all(), desk.gce.resources("instances")) == ([], [])
    desk.well("infra", "down", *PLACE, "--yes")


@pytest.mark.on_engine
def test_a_cluster_expires_and_can_be_extended(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """No machine is replaced, existing machines read the new expiry in fleet.json, and an expired cluster can be
    renewed."""
    week, file = 7 * 86_400.0, desk.cluster_file()
    desk.well("infra", "up", *PLACE, "--yes")
    shown = desk.well("cluster", "up", file, "--dry-run")
    assert "expires: " in shown.out and ": then its machines end" in shown.out
    made = desk.well("cluster", "up", file, "--yes", "--json").json
    assert abs(made["cluster"]["expires"] - time.time() - week) < 300
    assert made["expires"].endswith("Z")
    desk.until(lambda: len(_machines(desk)) == 2)
    machines, port = _machines(desk), f"cloudgpu-expires-{made['cluster']['expires']:.0f}"
    assert (_ports(desk), _expiry_on_machines(desk)) == ([port], made["cluster"]["expires"])

    for words, ports in ((["7h"], None), (["never"], ["cloudgpu-expires-never"])):
        later = desk.well("cluster", "extend", "big", *words, "--yes", "--json").json
        expires = later["cluster"]["expires"]
        assert (later["counts"], _machines(desk)) == ({"update": 1}, machines)
        assert _ports(desk) == (ports or [f"cloudgpu-expires-{expires:.0f}"])
        known = clusters.load("big")
        assert known is not None
        assert known.expires == expires == _expiry_on_machines(desk)
    assert "never" in desk.well("cluster", "status").out
    wrong = desk.run("cluster", "extend", "big", "7", "--yes")
    assert (wrong.code, "7d, or never" in wrong.err) == (2, True)

    desk.well("cluster", "up", file, "--yes")
    in_8_days = types.SimpleNamespace(time=lambda: time.time() + 8 * 86_400.0)
    monkeypatch.setattr(cluster_expiry, "time", in_8_days)
    # as the reaper does
    desk.provider.cloud.ordered("POST", f"{_group(desk)['selfLink'].partition('.com')[2]}/resize", size=0)
    over = desk.run("cluster", "scale", "big", "3", "--yes", "--json")
    assert (over.code, over.json["findings"][0]["code"]) == (4, "expired")
    assert "cloudgpu cluster extend big 7d" in over.err
    desk.well("cluster", "scale", "big", "0", "--yes")
    renewed = desk.well("cluster", "up", file, "--yes", "--json").json
    assert (renewed["cluster"]["expires"] > time.time() + 14 * 86_400.0, _group(desk)["targetSize"]) == (True, 2)


@pytest.mark.on_engine
def test_a_cluster_stays_in_its_backend(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster is not found in another backend; its own is remembered and need not be named."""
    own, other = (("--backend", f"file://{desk.folder / name}") for name in ("own", "other"))
    monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", "")
    desk.well("infra", "up", *PLACE, *own, "--yes")
    desk.well("infra", "status", *PLACE, *other)
    assert desk.run("infra", "down", *PLACE, *other, "--yes").code == 2
    assert desk.well("infra", "preview", *PLACE, "--json").json["counts"] == {}  # the backend is remembered

    file = desk.cluster_file()
    desk.well("cluster", "up", file, *own, "--yes")
    assert desk.well("cluster", "up", file, "--yes", "--json").json["counts"] == {}
    twice = desk.run("cluster", "up", file, *other, "--yes")
    assert (twice.code, f"the cluster big is kept in {own[1]}" in twice.err) == (4, True)
    assert desk.run("cluster", "down", "big", *other, "--yes").code == 2
    assert [one.backend for one in clusters.load_all()] == [own[1]]
    desk.well("cluster", "down", "big", "--yes")
    assert clusters.load_all() == []
    clusters.path_of("damaged").write_text("{")
    damaged = desk.run("infra", "down", *PLACE, "--yes")
    assert (damaged.code, str(clusters.path_of("damaged")) in damaged.err) == (6, True)
    clusters.forget("damaged")
    desk.well("infra", "down", *PLACE, "--yes")
    assert infra_outputs.load_all() == []


@pytest.mark.on_engine
def test_machines_of_a_spot_cluster_that_are_bought_on_demand_cost_what_they_cost(desk: Desk) -> None:
    desk.well("infra", "up", *PLACE, "--yes")

    def price(text: str) -> float:
        return float(desk.well("cluster", "up", desk.cluster_file(text), "--dry-run", "--json").json["price_usd_h"])

    def of_known() -> float:
        """Return the price of jobs that use all machines."""
        [known] = clusters.load_all()
        return known.fleet.size * float(known.price_usd_h or "nan")

    bought = CLUSTER.replace("nodes: 2", "zone: us-central1-a, nodes: 1")
    spot = bought.replace("nodes: 1", "nodes: 1, market: spot")
    mixed = spot.replace("nodes: 1", "nodes: 3") + "on_demand: 1\n"
    whole = pytest.approx(2 * price(spot) + price(bought), abs=1e-5)
    assert price(mixed) == whole
    assert price(mixed) > 3 * price(spot) + 0.1
    capped = desk.cluster_file(mixed.replace("5 USD/h", f"{price(mixed) - 0.1:.2f} USD/h"))
    refused = desk.run("cluster", "up", capped, "--yes", "--json")
    assert (refused.code, [one["code"] for one in refused.json["findings"]]) == (4, ["price-cap"])

    desk.well("cluster", "up", desk.cluster_file(mixed), "--yes")
    assert of_known() == whole
    fewer = desk.well("cluster", "scale", "big", "1", "--yes", "--json").json
    assert float(fewer["price_usd_h"]) == pytest.approx(of_known()) == pytest.approx(price(bought))


@pytest.mark.on_engine
def test_the_second_machine_of_a_cluster_reaches_the_first(desk: Desk) -> None:
    """Machines that reach each other need a different template than a single machine, and keep it when the cluster
    shrinks."""
    desk.well("infra", "up", *PLACE, "--yes")
    alone = desk.cluster_file(CLUSTER.replace("nodes: 2", "nodes: 1"))
    made = desk.well("cluster", "up", alone, "--yes", "--json").json["cluster"]
    assert made["fleet"]["peers"] is False
    offer = Offer("cluster", "big", "", "on-demand", (), 100.0, None, None, None)
    open_store().insert_job(make_job("digits-1", "gs://elsewhere/digits-1", [offer], now=time.time()), "submitted")

    grown = desk.well("cluster", "scale", "big", "2", "--yes", "--json").json
    assert grown["cluster"]["fleet"]["peers"] is True
    said = {one["code"]: one["message"] for one in grown["findings"]}
    assert "1 machine is replaced" in said["rolling"]
    assert "1 job runs there: digits-1" in said["jobs-run"]
    second = _template(desk)
    for words in (["up", alone], ["scale", "big", "0"]):
        fewer = desk.well("cluster", *words, "--yes", "--json").json
        assert [one["code"] for one in fewer["findings"]] == ["jobs-run"]
        assert (set(fewer["counts"]), _template(desk)) == ({"update"}, second)
    other = desk.cluster_file(CLUSTER.replace("nodes: 2", "nodes: 1, machine_type: g2-standard-8"))
    desk.well("cluster", "scale", "big", "1", "--yes")
    quota = desk.well("cluster", "up", other, "--dry-run", "--json").json["quota"]
    assert quota == "enough, according to the provider"  # checked for the other machine type
    assert "cloudgpu cluster scale big MACHINES" in desk.well("cluster", "scale", "big", "0", "--yes").err


@pytest.mark.on_engine
def test_a_cluster_is_where_its_reservation_is(desk: Desk) -> None:
    desk.well("infra", "up", *PLACE, "--yes")
    file = desk.cluster_file(CLUSTER.replace("nodes: 2", "nodes: 2, market: reservation").replace("limits", "#"))
    refused = desk.run("cluster", "up", file, "--yes")
    assert (refused.code, "no reservation of" in refused.err) == (6, True)

    desk.gce.reserve("ours", "g2-standard-4", f"{REGION}-b", 2, accelerator="nvidia-l4", count=1)
    made = desk.well("cluster", "up", file, "--yes", "--json").json["cluster"]
    assert made["fleet"]["zones"] == [f"{REGION}-b"]
    [template] = desk.gce.resources("instanceTemplates")
    assert template["properties"]["reservationAffinity"]["values"] == [f"projects/{made['account']}/reservations/ours"]
    desk.until(lambda: len(_machines(desk)) == 2)
    machines = desk.gce.resources("instances")
    assert [one["zone"].rpartition("/")[2] for one in machines] == [f"{REGION}-b"] * 2

    # Its own machines now fill the reservation, so it is not searched for again.
    assert desk.well("cluster", "up", file, "--json").json["counts"] == {}
    assert desk.well("cluster", "scale", "big", "1", "--yes", "--json").json["cluster"]["fleet"]["size"] == 1
    assert desk.well("cluster", "up", file, "--renew", "--dry-run").code == 0


@pytest.mark.on_engine
@pytest.mark.parametrize("desk", [True], indirect=True, ids=["machines boot"])
def test_a_job_on_a_cluster_that_was_brought_up(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the two commands to the job's end: the group's machine boots from the template that `cluster up` created."""
    job = desk.file("code/job.yaml", "name: turn\nresources: {accelerator: L4}\nrun: echo it ran\n")
    with state_directory(desk.folder / "home", monkeypatch):
        desk.well("infra", "up", *PLACE, "--yes")
        desk.well("cluster", "up", desk.cluster_file(CLUSTER.replace("nodes: 2", "nodes: 1")), "--yes")
        done = in_a_process("submit", job, "--cluster", "big")
        assert done.code == 0, done.err
        assert "it ran" in done.out.splitlines()
        assert [job.state for job in list_jobs()] == ["succeeded"]
        desk.well("cluster", "down", "big", "--yes")


def _group(desk: Desk) -> Any:
    [group] = desk.gce.resources("regionInstanceGroupManagers")
    return group


def _ports(desk: Desk) -> list[str]:
    return [one["name"] for one in _group(desk)["namedPorts"]]


def _machines(desk: Desk) -> list[str]:
    return sorted(str(one["id"]) for one in desk.gce.resources("instances"))


def _expiry_on_machines(desk: Desk) -> float | None:
    """Return the expiry that the machines read."""
    known = clusters.load("big")
    assert known is not None
    return Fleet(known.fleet_dir).view().settings.expires


def _template(desk: Desk) -> list[str]:
    return sorted(one["name"] for one in desk.gce.resources("instanceTemplates"))
