"""Report of places that refused a job: grouped, each place once, readable with forty of them."""

from __future__ import annotations

import pytest

from cloudgpu.cli.status import view as status_view
from cloudgpu.control.jobs import Job
from cloudgpu.control.reconcile.refusal_report import group, lines, message
from cloudgpu.control.store.model import Refused
from cloudgpu.jobspecs.plan import Offer
from cloudgpu.provisioners.base import ProvisionError
from cloudgpu.tests.standins.cloud import Life, lives
from cloudgpu.tests.standins.control import World, make_offer, make_policy

NOW = 1_700_000_000.0  # 2023-11-14 22:13:20 UTC


def offer(region: str, zone: str, market: str = "spot", machine: str = "g4dn.xlarge") -> Offer:
    return make_offer(region=region, zone=zone, market=market, machine_type=machine)._replace(cloud="aws")


def sold_out(region: str, zone: str, at: float = NOW, market: str = "spot") -> Refused:
    """Return a refusal in EC2's wording, which names the zone and the zones that have capacity."""
    name = f"{region}{zone[-1]}"
    words = (
        f"start worker-0.1 ({market} g4dn.xlarge) in {name}: InsufficientInstanceCapacity: We currently do not have "
        f"sufficient g4dn.xlarge capacity in the Availability Zone you requested ({name}). Our system will be working "
        f"on it. You can currently get capacity by choosing {region}b" + (f", {region}c" if zone == "az1" else "")
    )
    return Refused(offer(region, zone, market), "capacity", "zone", words, at)


def test_places_that_differ_by_name_only_have_one_reason() -> None:
    refused = [
        sold_out(f"eu-west-{region}", f"az{zone}", market=market)
        for market in ("spot", "on-demand")
        for region in range(1, 8)
        for zone in (1, 2, 3)
    ]
    [found] = group(refused)
    assert len(found.places) == 42
    assert found.reason == refused[-1].reason
    report = lines([found], lambda _moment: "14:03")
    assert report[0] == f"no capacity, 42 places: {refused[-1].reason}"
    assert report[1] == "  aws eu-west-1 spot g4dn.xlarge: az1 14:03, az2 14:03, az3 14:03"
    assert len(report) == 1 + 14


def test_other_reasons_stand_apart() -> None:
    quota = Refused(offer("us-1", "az1"), "quota", "region", "4 vCPUs more are needed; quota L-1 allows 0", NOW)
    closed = Refused(offer("us-1", "az2"), "quota", "region", "the disk quota allows 0", NOW)
    assert [one.reason for one in group([quota, sold_out("us-1", "az1"), closed])] == [
        quota.reason,
        sold_out("us-1", "az1").reason,
        closed.reason,
    ]


def test_a_place_is_listed_once_with_its_tries() -> None:
    refused = [sold_out("us-1", "az1", NOW + 600 * number) for number in range(3)]
    text = message([*refused, sold_out("us-1", "az2", NOW + 60)])
    headline, reason, places = text.splitlines()
    assert headline == "no machines: 4 tries at 2 places from 2023-11-14 22:13 to 22:33 UTC: no capacity"
    assert reason.startswith("  no capacity, 2 places: ")
    assert places == "    aws us-1 spot g4dn.xlarge: az1 3 × until 22:33, az2 22:14"


def test_days_are_shown_where_they_differ() -> None:
    text = message([sold_out("us-1", "az1", NOW), sold_out("us-1", "az2", NOW + 86_400)])
    assert "from 2023-11-14 22:13 to 2023-11-15 22:13 UTC" in text
    assert "az1 2023-11-14 22:13, az2 22:13" in text


def test_one_try_is_one_try() -> None:
    assert (
        message([sold_out("us-1", "az1")]).splitlines()[0] == "no machines: 1 try at 2023-11-14 22:13 UTC: no capacity"
    )
    here = Refused(make_offer(), "capacity", "zone", "2 GPUs wanted, 1 is free", NOW)
    assert message([here]).splitlines()[-1] == "    this machine: 22:13"
    assert message([]) == "no machines"


# -- status


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


def seen(world: World, job_id: str) -> Job:
    return Job(world.store, world.job(job_id))


def test_status_of_a_job_that_found_no_machines(world: World) -> None:
    offers = [offer(f"eu-west-{region}", f"az{zone}") for region in range(1, 6) for zone in (1, 2)]
    world.cloud.full = {"az1", "az2"}
    job_id = world.submit(*offers, policy=make_policy(capacity_s=1200))
    world.drive(world.supervisor())
    text = status_view.job_text(seen(world, job_id))
    assert "no machines within retry.capacity of 20m: 20 tries at 10 places from " in text
    assert text.count("no capacity, 10 places: ") == 1
    assert text.count("aws eu-west-3 spot g4dn.xlarge: az1 2 × until ") == 1
    [row] = [line.split() for line in text.splitlines() if line.split()[1:2] == ["refused"]]
    assert row[0] == "1-20"
    assert "10 places" in " ".join(row)
    assert len(text.splitlines()) < 45


def test_status_of_a_job_that_waits(world: World) -> None:
    world.cloud.full = {"az1"}
    world.clock.time = 4_000_000_000.0  # after the real time, so that the next retry is in the future
    job_id = world.submit(offer("us-1", "az1"))
    world.drive(world.supervisor(), until=lambda: world.job(job_id).cause == "capacity")
    text = status_view.job_text(seen(world, job_id))
    assert "queued: no machines available; next try at 2096-10-02 07:1" in text
    assert "next try   in " in text
    status = status_view.status_json(seen(world, job_id))
    assert status["next_try"].startswith("2096-10-02T07:1")
    assert status["attempts"][0]["cause"] == "capacity"


def test_status_of_a_job_that_found_machines_in_the_end(world: World) -> None:
    world.cloud.script = lives(Life(run_s=1e6))
    world.cloud.faults["launch"] = [
        ProvisionError("quota", "not here", scope="region"),
        ProvisionError("capacity", "no"),
    ]
    job_id = world.submit(offer("us-1", "az1"), offer("eu-1", "az1"), offer("eu-1", "az2"))
    world.drive(world.supervisor(), until=lambda: world.job(job_id).state == "running")
    text = status_view.job_text(seen(world, job_id))
    section = text[text.index("no machines at") :].splitlines()
    assert section[1] == "  no quota, 1 place: not here"
    assert section[2].startswith("    aws us-1 spot g4dn.xlarge: az1 ")
    assert section[3] == "  no capacity, 1 place: no"
    assert "next try" not in text
