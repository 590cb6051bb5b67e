"""docs/guides/aws.md agrees with the code: messages, quota codes, tags."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import cloudgpu
from cloudgpu.provisioners.aws.catalog import quotas
from cloudgpu.provisioners.shared import errors, tags

ROOT = Path(cloudgpu.__file__).parent
PAGE = (ROOT / "docs" / "guides" / "aws.md").read_text()
SOURCES = [*(ROOT / "provisioners").rglob("*.py"), *(ROOT / "control").rglob("*.py"), ROOT / "storage" / "s3.py"]


def test_every_message_of_the_table_is_one_that_is_printed() -> None:
    table = PAGE.partition("## Troubleshooting")[2]
    messages = re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)
    assert len(messages) > 30
    code = "\n".join(path.read_text() for path in SOURCES)
    known = {code for rule in errors.rules() for code in rule.codes} | {
        rule.pattern.pattern for rule in errors.rules() if rule.pattern
    }
    missing = [message for message in messages if message not in known and message not in code]
    assert missing == []


def test_every_class_of_error_that_a_user_can_mend_is_in_the_table() -> None:
    table = PAGE.partition("## Troubleshooting")[2]
    for code in ("UnauthorizedOperation", "ExpiredToken", "VcpuLimitExceeded", "OptInRequired", "PendingVerification"):
        assert any(rule.cloud == "aws" and code in rule.codes and rule.advice for rule in errors.rules())
        assert f"`{code}`" in table


def test_quota_codes_are_those_that_are_checked() -> None:
    rows = re.findall(r"^ +\| .+ \| (L-\w+) \| (L-\w+)? ?", PAGE, re.MULTILINE)
    printed = {code for row in rows for code in row if code}
    with (ROOT / "provisioners" / "aws" / "catalog" / "quotas.csv").open() as file:
        accelerated = {row["code"] for row in csv.DictReader(file) if not row["families"].startswith("a ")}
    assert printed == accelerated == {quota.code for quota in quotas.quotas() if "Standard" not in quota.name}


def test_every_tag_is_named() -> None:
    for name in (
        tags.OWNER,
        tags.JOB,
        tags.ATTEMPT,
        tags.TOKEN,
        tags.EXPIRES,
        tags.ROLE,
        tags.INDEX,
        tags.RANK,
        tags.NODE,
    ):
        assert f"`{name}`" in PAGE or f"`{name.removeprefix('cloudgpu')}`" in PAGE


def test_quotas_of_families() -> None:
    found = {
        (machine, market): getattr(quotas.quota_of(machine, market), "code", None)
        for machine in (
            "g6f.large",
            "gr6.4xlarge",
            "p4de.24xlarge",
            "p5en.48xlarge",
            "p6-b200.48xlarge",
            "trn1n.32xlarge",
        )
        for market in ("on-demand", "spot", "reservation")
    }
    assert [code for (_, market), code in found.items() if market == "reservation"] == [None] * 6
    assert [code for (_, market), code in found.items() if market == "on-demand"] == [
        *("L-DB2E81BA", "L-DB2E81BA", "L-417A185B", "L-417A185B", "L-417A185B", "L-2C3B7624")
    ]
    assert [code for (_, market), code in found.items() if market == "spot"] == [
        *("L-3819A6DF", "L-3819A6DF", "L-7212CCBC", "L-C4BD4855", None, "L-6B0D517C")
    ]
