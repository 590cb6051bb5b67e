"""errors.csv, the meanings of the providers' errors. Every row decides a real response, and no row hides another."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple, get_args

import pytest

from cloudgpu.provisioners.base import ErrorClass, Scope
from cloudgpu.provisioners.shared.errors import COLUMNS, Answer, classify, matching_rule, rules

TABLE = Path(__file__).parents[2] / "provisioners" / "shared" / "errors.csv"
ANSWERS = Path(__file__).with_name("error_answers.csv")
with TABLE.open(encoding="utf-8", newline="") as _table:
    ROWS = list(csv.DictReader(_table))
P4D = (
    "We currently do not have sufficient p4d.24xlarge capacity in the Availability Zone you requested (us-east-1a). "
    "Our system will be working on provisioning additional capacity. You can currently get p4d.24xlarge capacity by "
    "not specifying an Availability Zone in your request or choosing us-east-1b, us-east-1d."
)


class Case(NamedTuple):
    """A row of error_answers.csv: a provider's response and its expected meaning.

    `status`: as in errors.csv; `row`: the first code (otherwise the status or pattern) of the row of errors.csv that
    decides; `seen`: the origin of the wording (`document`, `trace` of a public program, `recalled` without a source,
    `invented` for unknown wordings); `source`: URL.
    """

    cloud: str
    status: str
    code: str
    message: str
    error_class: str
    scope: str
    row: str
    seen: str
    source: str

    def answer(self) -> Answer:
        """Return the response as the Answer that classify() takes."""
        number = self.status.removeprefix("operation").strip()
        is_operation = self.status.startswith("operation")
        return Answer(self.cloud, self.code, self.message, int(number) if number else None, is_operation)


with ANSWERS.open(encoding="utf-8", newline="") as _file:
    CASES = [Case(*row) for row in list(csv.reader(_file, strict=True))[1:]]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.cloud}-{case.code}-{case.error_class}")
def test_class_and_scope_and_the_providers_own_words(case: Case) -> None:
    result = case.answer()
    error = classify(
        result.cloud,
        code=result.code,
        status=result.status,
        message=result.message,
        is_operation=result.is_operation,
        doing="start worker-0.1",
    )
    assert (error.error_class, error.scope, error.code) == (case.error_class, case.scope, case.code)
    assert str(error).startswith("start worker-0.1: ")
    assert case.code in str(error)
    assert case.message.strip().rstrip(".") in str(error)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.cloud}-{case.code}-{case.error_class}")
def test_the_row_that_decides(case: Case) -> None:
    rule, _ = matching_rule(case.answer())
    assert _name(ROWS[rules().index(rule)]) == case.row


def test_every_row_decides_on_an_answer_of_a_document() -> None:
    deciding = {rules().index(matching_rule(case.answer())[0]) for case in CASES}
    unused = [ROWS[at] for at in range(len(ROWS)) if at not in deciding]
    assert not unused, "add an answer to error_answers.csv for each, with its source"


def test_answers_have_sources() -> None:
    assert {case.seen for case in CASES} == {"document", "trace", "recalled", "invented"}
    assert [case for case in CASES if not case.source.startswith("https://")] == []


def test_codes_are_compared_without_case() -> None:
    for code in ("OverconstrainedAllocationRequest", "OverConstrainedAllocationRequest"):
        assert classify("azure", code=code, message="", is_operation=True).error_class == "capacity"


def _name(row: dict[str, str]) -> str:
    return row["code"].split()[0] if row["code"] else row["status"] or row["pattern"] or "anything"


def test_zones_that_the_message_names_are_hints() -> None:
    error = classify("aws", code="InsufficientInstanceCapacity", status=500, message=P4D)
    assert error.hints == ("us-east-1b", "us-east-1d")
    one = P4D.replace("us-east-1b, us-east-1d", "us-east-1b")
    assert classify("aws", code="InsufficientInstanceCapacity", status=500, message=one).hints == ("us-east-1b",)
    assert classify("aws", code="InsufficientInstanceCapacity", message="Insufficient capacity.").hints == ()


def test_hints_that_are_told_apart_from_the_message_are_kept() -> None:
    error = classify("gcp", code="STOCKOUT", message="none", hints=["us-east1-c"], retry_after=3.0)
    assert (error.hints, error.retry_after) == (("us-east1-c",), 3.0)


def test_advice_says_what_to_do() -> None:
    assert "Service Quotas" in str(classify("aws", code="VcpuLimitExceeded", status=400, message="too many"))
    assert str(classify("aws", code="InternalError", status=500, message="Try again.")) == "InternalError: Try again"


def test_the_table_is_in_order() -> None:
    assert tuple(ROWS[0]) == COLUMNS
    assert len(rules()) == len(ROWS)
    for row in ROWS:
        assert row["class"] in get_args(ErrorClass)
        assert row["scope"] in get_args(Scope)
        assert row["source"], row
        assert row["code"] or row["status"] or row["pattern"] or row is ROWS[-1], f"fits everything: {row}"
    assert {row["cloud"] for row in ROWS} == {"aws", "gcp", "vertex", "azure", "*"}


def test_no_row_is_hidden_by_one_before_it() -> None:
    """A code that an earlier row with fewer conditions matches would never be reached."""
    for number, late in enumerate(rules()):
        for early in rules()[:number]:
            covers = (
                early.cloud in (late.cloud, "*")
                and (not early.codes or bool(early.codes & late.codes))
                and early.status in (late.status, "")
                and (early.pattern is None or early.pattern == late.pattern)
            )
            assert not covers, f"{late} is hidden by {early}"
