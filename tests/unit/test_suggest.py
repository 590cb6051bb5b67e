"""The nearest known names."""

from __future__ import annotations

import pytest

from cloudgpu.jobspecs.suggest import closest, did_you_mean, looks_like, odd_character, one_of
from cloudgpu.tests.standins.clocks import fast

GPUS = ("A10G", "A100-40GB", "A100-80GB", "A100", "H100", "H200", "L4", "L40S", "T4", "V100")
REGIONS = ("us-east-1", "us-east-2", "us-west-1", "eu-west-1", "us-central1", "us-central2", "europe-west4")


@pytest.mark.parametrize(
    ("text", "options", "first"),
    [
        ("A1000", GPUS, "A100"),
        ("H1OO", GPUS, "H100"),
        ("h100", GPUS, "H100"),
        ("L4O5", GPUS, "L40S"),
        ("T_4", GPUS, "T4"),
        ("A100-80", GPUS, "A100-80GB"),
        ("us-esat-1", REGIONS, "us-east-1"),
        ("us_central1", REGIONS, "us-central1"),
        ("europe-wets4", REGIONS, "europe-west4"),
        ("acelerators", ("accelerator", "args"), "accelerator"),
        ("nаme", ("name", "run"), "name"),
        ("ｎａｍｅ", ("name", "run"), "name"),
        ("na\u200bme", ("name", "run"), "name"),
        ("p4d", ("p3.2xlarge", "p4d.24xlarge"), "p4d.24xlarge"),
    ],
)
def test_the_likeliest_comes_first(text: str, options: tuple[str, ...], first: str) -> None:
    assert closest(text, options)[0] == first


@pytest.mark.parametrize("text", ["", "   ", "banana", "x" * 10_000, ".*", "(", "\\", "%s", "😀"])
def test_nothing_near(text: str) -> None:
    assert closest(text, GPUS) == []
    assert not did_you_mean(text, GPUS)


def test_at_most_n_and_each_once() -> None:
    assert closest("us-central", REGIONS, 1) == ["us-central1"]
    assert closest("name", ["name", "name"]) == ["name"]


def test_thousands_of_options_take_no_time() -> None:
    options = [f"n{family}-standard-{cpus}" for family in range(60) for cpus in range(60)]
    with fast():
        assert closest("n1-standrad-8", options)[0] == "n1-standard-8"


def test_sentences() -> None:
    assert [one_of(names) for names in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == ["", "a", "a or b", "a, b or c"]
    assert did_you_mean("gpc", ["aws", "gcp"]) == "did you mean gcp?"


def test_characters_that_only_look_right() -> None:
    assert looks_like("nаmе") == "name"
    assert odd_character("nаme") == "CYRILLIC SMALL LETTER A (U+0430) at character 2"
    assert odd_character("name") == ""
    assert odd_character("a\ue000") == "a nameless character (U+E000) at character 2"
