"""`cloudgpu plan` and its text output."""

from __future__ import annotations

import json
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.cli.exit_codes import Exit
from cloudgpu.cli.main import main
from cloudgpu.cli.shared.jobfile.plan_view import offer_text, one_row_per_region, plan_json, plan_text, refusals_text
from cloudgpu.jobspecs.models import JobSpec
from cloudgpu.jobspecs.plan import Offer, Plan, Refusal, RoleOffer
from cloudgpu.provisioners import launchable
from cloudgpu.provisioners.shared import infra_outputs
from cloudgpu.provisioners.shared.infra_outputs import Infrastructure

JOB = """\
name: digits
resources:
  accelerator: [L4:1, T4:1]
  cloud: [gcp, aws, azure]
  market: [spot, on-demand]
code: null
run: python train.py
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "100")
    Path("job.yaml").write_text(JOB)


def job(**fields: Any) -> JobSpec:
    return JobSpec.model_validate({"name": "j", "run": "true", **fields})


def role(name: str = "worker", accelerator: str | None = "L4", machine_type: str = "g2-standard-4") -> RoleOffer:
    return RoleOffer(
        role=name,
        nodes=2,
        machine_type=machine_type,
        accelerator=accelerator,
        count=Fraction(1 if accelerator else 0),
        vcpus=4,
        memory_gb=16.0,
        price=Decimal("0.7068"),
    )


OFFER = Offer(
    cloud="gcp",
    region="us-central1",
    zone="us-central1-a",
    market="spot",
    roles=(role(),),
    disk_gb=100.0,
    disk_price=Decimal("0.0274"),
    price=Decimal("1.441"),
    price_date="2026-07-30",
    notes=("support for L4 ends 2030-01-01",),
)
OTHER_ZONE = OFFER._replace(zone="us-central1-b")
ON_AWS = OFFER._replace(
    cloud="aws",
    region="us-east-1",
    zone="use1-az4",
    roles=(role(machine_type="g6.xlarge"),),
    price=Decimal("1.6"),
    notes=(),
)
UNKNOWN = OFFER._replace(cloud="vertex", zone=None, price=None, price_date=None)
MIXED = OFFER._replace(market="on-demand", roles=(role("chief"), role("parameter_server", None, "n1-standard-4")))
REFUSALS = (
    Refusal(
        "accelerator-offered", "azure", "azure L4:1", "azure has no machine with L4", "L4 is on aws, gcp or vertex"
    ),
    Refusal("offered-in-region", "gcp", "gcp L4:1 in mars", "not offered in mars", "us-east4", Decimal("0.9")),
    Refusal("price-cap", "gcp", "gcp g2-standard-8 + L4:1, spot", "above limits.price", "3 USD/h", Decimal("2.5")),
)

GOLDEN = """\
#  cloud   region, zones       machine            GPUs  market       USD/h  price of
1  gcp     us-central1 a,b     2 × g2-standard-4  L4:1  spot        1.4410  2026-07-30
2  aws     us-east-1 az4       2 × g6.xlarge      L4:1  spot        1.6000  2026-07-30
3  gcp     us-central1 a                                on-demand   1.4410  2026-07-30
             chief             2 × g2-standard-4  L4:1
             parameter_server  2 × n1-standard-4  -
4  vertex  us-central1         2 × g2-standard-4  L4:1  spot       unknown  -
1, 3-4: support for L4 ends 2030-01-01

Cheaper, but refused:
  0.9000 USD/h  gcp L4:1 in mars: not offered in mars; us-east4 [offered-in-region]

Refused:
  azure L4:1: azure has no machine with L4; L4 is on aws, gcp or vertex [accelerator-offered]
  2.5000 USD/h  gcp g2-standard-8 + L4:1, spot: above limits.price; 3 USD/h [price-cap]

It would create:
  2 machines g2-standard-4 (worker; L4:1, 4 vCPU, 16GB) in gcp us-central1-a spot
  2 disks of 100GB, deleted with the machines
  1 folder for the job's code, logs, checkpoints and outputs in s3://bucket/jobs

Limits:
  at most 12h, all attempts together: at this price at most 17.29 USD
  at most 50 USD, all attempts together: then a checkpoint, then the end"""


def test_the_text_of_a_plan() -> None:
    plan = Plan((OFFER, OTHER_ZONE, ON_AWS, MIXED, UNKNOWN), REFUSALS)
    spec = job(job_dir="s3://bucket/jobs", limits={"duration": "12h", "cost": "50 USD"})
    assert plan_text(plan, spec) == GOLDEN


def test_zones_share_a_row_and_nothing_else_does() -> None:
    assert one_row_per_region([OFFER, OTHER_ZONE, ON_AWS]) == [(OFFER, OTHER_ZONE), (ON_AWS,)]


def test_ten_rows_and_eight_refusals_unless_all_are_wanted() -> None:
    offers = tuple(OFFER._replace(region=f"r{i}", zone=None) for i in range(13))
    refusals = tuple(Refusal("count-offered", "gcp", f"gcp L4:{i}", "none", "") for i in range(11))
    short = plan_text(Plan(offers, refusals), job())
    assert "… and 3 more (--all)" in short
    assert short.count("[count-offered]") == 8
    whole = plan_text(Plan(offers, refusals), job(), show_all=True)
    assert "more (--all)" not in whole
    assert whole.count("[count-offered]") == 11
    assert "r12" in whole


def test_no_offer() -> None:
    text = refusals_text(Plan((), REFUSALS))
    assert text.splitlines()[0] == "Refused, with known prices:"
    assert text.index("0.9000 USD/h") < text.index("2.5000 USD/h") < text.index("azure L4:1")


def test_an_unknown_price_has_no_cost() -> None:
    text = plan_text(Plan((UNKNOWN,)), job(limits={"duration": "1h", "cost": "5 USD"}))
    assert "at most 1h, all attempts together: cost unknown, for the price is" in text
    assert "  5 USD cannot be kept at an unknown price: `submit` leaves such offers out" in text
    assert "at most 5 USD" not in text and "0.00" not in text


def test_a_bound_is_shown_as_one() -> None:
    at_most = ON_AWS._replace(price_at_most=True)
    at_least = UNKNOWN._replace(price_from=Decimal("1.3579"))
    lines = plan_text(Plan((at_most, at_least)), job(limits={"duration": "10h"})).splitlines()
    assert lines[1].endswith("spot       ≤ 1.6000  2026-07-30")
    assert lines[2].endswith("spot    from 1.3579  -")
    assert offer_text(at_most).endswith("L4:1, at most 1.60 USD/h")
    assert offer_text(at_least).endswith("L4:1, from 1.36 USD/h")
    assert plan_json(Plan((at_least,)), job())["offers"][0]["price_from_usd_h"] == "1.3579"


def test_control_characters_stay_harmless() -> None:
    text = refusals_text(Plan((), (Refusal("accelerator-known", "gcp", "gcp \x1b[31mL4", "no", ""),)))
    assert "\x1b" not in text


# --- the command ------------------------------------------------------------------------------------------------------


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(["plan", "job.yaml", *args])
    out, err = capsys.readouterr()
    return code, out, err


def test_what_nothing_outside_ends_is_said_with_the_command_that_mends_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "home"))
    flags = ("--cloud", "aws", "--region", "us-east-1", "--json")
    command = "cloudgpu infra up --cloud aws --region us-east-1"
    _, out, err = run(capsys, *flags)
    json.loads(out)
    assert "nothing ends a machine on aws that hangs while no supervisor runs" in err and command in err
    assert all(len(line) <= 80 for line in err.splitlines() if "nothing ends" in line or "infra up" in line)
    infra_outputs.save(Infrastructure("aws", "us-east-1", stack="s", owner="o", network="n"))
    assert command not in run(capsys, *flags)[2]
    assert "nothing ends" not in run(capsys, "--cloud", "gcp", "--region", "us-central1")[2]


def test_a_plan_for_three_clouds(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys)
    assert code == Exit.OK
    if "gcp" not in launchable():
        assert err.startswith("note: this version plans for gcp, but launches only on: ")
    assert out.splitlines()[0].split() == [
        "#",
        "cloud",
        "region,",
        "zones",
        "machine",
        "GPUs",
        "market",
        "USD/h",
        "price",
        "of",
    ]
    assert "It would create:" in out
    assert "azure has no machine with L4" in out


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--all",),
        ("--accelerator", "H100:8", "--all"),
        ("--set", "limits.price=0.3 USD/h", "--all"),
        ("--set", "resources.accelerator={memory: 24GB..}", "--all"),
        ("--set", "resources.cloud=[gcp, vertex]", "--set", "resources.accelerator=none", "--all"),
    ],
)
def test_it_fits_100_columns(capsys: pytest.CaptureFixture[str], flags: tuple[str, ...]) -> None:
    _, out, _ = run(capsys, *flags)
    assert max(map(len, out.splitlines())) <= 100


def test_flags_win(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--cloud", "aws", "--market", "on-demand", "--region", "us-east-1", "--json")
    plan = json.loads(out)
    assert code == Exit.OK
    assert {offer["cloud"] for offer in plan["offers"]} == {"aws"}
    assert {offer["market"] for offer in plan["offers"]} == {"on-demand"}


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--json")
    plan = json.loads(out)
    assert set(plan) == {"name", "offers", "refusals"}
    assert set(plan["refusals"][0]) == {"rule", "cloud", "subject", "message", "allowed", "price_usd_h"}
    assert [Offer.from_json(offer).to_json() for offer in plan["offers"]] == plan["offers"]


def test_nothing_can_run_it(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--accelerator", "L4:3")
    assert code == Exit.IMPOSSIBLE
    assert "L4:1, 2, 4 or 8" in out
    assert "nothing can run this job" in err
    code, out, _ = run(capsys, "--accelerator", "L4:3", "--json")
    assert code == Exit.IMPOSSIBLE
    assert json.loads(out)["offers"] == []


def test_an_invalid_file(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--accelerator", "A1000:1")
    assert (code, out) == (Exit.INVALID, "")
    assert "unknown-accelerator" in err
    assert "A100" in err


def test_a_missing_file(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["plan", "nothing.yaml"])
    assert code in {Exit.INVALID, Exit.UNAVAILABLE, Exit.USAGE}
    assert capsys.readouterr().out == ""


def test_planning_loads_nothing_heavy() -> None:
    """Modules that make a command slow to start or could reach the network."""
    script = (
        "import sys; begun = set(sys.modules);"
        "from cloudgpu.cli.main import main; main(['plan', 'job.yaml', '--json']);"
        "heavy = {'sqlalchemy', 'alembic', 'obstore', 'rich', 'torch', 'boto3', 'google.auth', 'google.cloud', 'azure',"
        " 'asyncio', 'ssl', 'http.client', 'psutil', 'pynvml'};"
        "print(sorted(heavy & (set(sys.modules) - begun)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"


def test_what_submit_refuses_is_said_in_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--cloud", "azure", "--accelerator", "L4", "--json")
    assert main(["submit", "job.yaml", *words]) == Exit.IMPOSSIBLE
    refused = json.loads(capsys.readouterr().out)
    assert refused == json.loads(run(capsys, *words)[1])
    assert (refused["offers"], [one["cloud"] for one in refused["refusals"]]) == ([], ["azure"])
