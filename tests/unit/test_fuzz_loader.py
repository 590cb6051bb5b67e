"""Fuzz test of the loader: any text gives, quickly, a spec or a SpecError with places in the file, and no other
exception."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloudgpu.jobspecs.diagnostics import Diagnostic, SpecError
from cloudgpu.jobspecs.loading.draft import LoadedSpec
from cloudgpu.jobspecs.loading.loader import load_bytes, load_text
from cloudgpu.jobspecs.loading.reports import to_json, to_sarif, to_text
from cloudgpu.jobspecs.models import JobSpec, Resources
from cloudgpu.tests.standins.clocks import fast
from cloudgpu.tests.standins.long_mode import LONG

VALID = """\
name: digits
resources:
  accelerator: [L4:1, {memory: 24GB.., count: 1/8}]
  cloud: [gcp, aws]
  region: us-central1
  market: spot
  disk: 100GB
code: null
setup: pip install -r requirements.txt
run: &run [python, train.py]
args: *run
env: {LR: "0.01", DEBUG: no}
checkpoint: {every: 10m, keep: 3}
retry: {preemption: unlimited, failure: 1}
limits: {duration: 12h, cost: 50 USD, price: 5 USD/h}
"""
AI_PLATFORM = """\
trainingInput:
  scaleTier: CUSTOM
  masterType: n1-standard-8
  masterConfig: {acceleratorConfig: {count: 1, type: NVIDIA_TESLA_T4}}
  workerCount: 2
  workerType: n1-standard-8
  region: us-central1
  pythonModule: trainer.task
  packageUris: [gs://bucket/trainer.tar.gz]
"""
VERTEX = """\
workerPoolSpecs:
  - machineSpec: {machineType: n1-standard-8, acceleratorType: NVIDIA_TESLA_T4, acceleratorCount: 1}
    replicaCount: 1
    containerSpec: {imageUri: gcr.io/p/i, command: [python, train.py]}
"""
FILES = (VALID, AI_PLATFORM, VERTEX)
PIECES = (
    *"\t\n -:,[]{}#&*!|>'\"%@`?<~=\\",
    ": ", "- ", "\n  ", "<<: ", "*run", "&run ", "!!int ", "---\n", "null", "\ufeff", "\x00", "а", "9" * 30, "..",
    "resources", "accelerator", "roles", "chief: ", "L4:0", "spot", "trainingInput: ", "workerPoolSpecs: ", "\\0", "😀",
)  # fmt: skip

EXAMPLES = 3_000 if LONG else 100
fuzz = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def check(text: str | bytes, overrides: tuple[str, ...] = ()) -> LoadedSpec | None:
    """Load within the time limit; check that each error can be printed in every form and lies in the file."""
    loaded: LoadedSpec | None = None
    found: list[Diagnostic] = []
    with fast():
        try:
            loaded = load_bytes(text, "f", overrides) if isinstance(text, bytes) else load_text(text, "f", overrides)
        except SpecError as error:
            found = error.diagnostics
        if loaded is not None:
            found = list(loaded.warnings)
            assert JobSpec.from_stored(loaded.spec.to_stored()) == loaded.spec
    assert loaded is not None or found
    for item in found:
        assert item.message
        assert item.line == 0 or (item.line >= 1 and item.column >= 1 and item.file == "f")
    shown = to_text(found)
    assert shown.replace("\n", "").isprintable()
    assert len(to_json(found)) == len(to_sarif(found, "1")["runs"][0]["results"]) == len(found)
    return loaded


for _file in FILES:
    check(_file)  # reads the tables, which are cached, before loading is timed


@fuzz
@given(st.text(max_size=300))
def test_any_text(text: str) -> None:
    check(text)


@fuzz
@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    check(data)


@fuzz
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=60))
def test_pieces_of_yaml(pieces: list[str]) -> None:
    check("".join(pieces))


@fuzz
@given(
    st.sampled_from(FILES),
    st.lists(
        st.tuples(st.integers(0, 10_000), st.integers(0, 12), st.sampled_from(PIECES) | st.text(max_size=4)),
        min_size=1,
        max_size=4,
    ),
)
def test_mutations_of_valid_files(text: str, edits: list[tuple[int, int, str]]) -> None:
    for place, cut, put in edits:
        place %= len(text) + 1  # noqa: PLW2901
        text = text[:place] + put + text[place + cut :]
    check(text)


KEYS = st.sampled_from(
    (
        *JobSpec.model_fields,
        *Resources.model_fields,
        *("count", "memory", "chief", "worker", "every", "keep", "preemption", "failure", "duration", "cost", "price"),
        *("trainingInput", "masterConfig", "acceleratorConfig", "scaleTier", "workerPoolSpecs", "machineSpec"),
        *("nаme", "", "<<"),
    )
)
SCALARS = st.text(max_size=8) | st.sampled_from(
    (
        *(None, True, 0, -1, 10**30, 1.5, "", "none", "auto", "L4", "L4:2", "L4:1..", "H1OO:8", "24GB..", "12h"),
        *("5 USD", "5 USD/h", "spot", "us-central1", "n1-standard-8", "CUSTOM", "s3://b/x"),
        *("x; $(id)", "%s{0}", ".*", "\x1b[0m", "名前"),
    )
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS | st.text(max_size=4), inner, max_size=5),
    max_leaves=20,
)


@fuzz
@given(st.dictionaries(KEYS, VALUES, max_size=8))
def test_any_values_under_known_keys(document: dict[str, Any]) -> None:
    check(yaml.safe_dump(document, allow_unicode=True))


@fuzz
@given(KEYS, VALUES)
def test_one_value_of_a_valid_file_replaced(key: str, value: Any) -> None:
    document = yaml.safe_load(VALID)
    (document["resources"] if key in {"accelerator", "cloud", "region", "disk", "market"} else document)[key] = value
    check(yaml.safe_dump(document))


@fuzz
@given(st.lists(st.tuples(KEYS | st.text(max_size=5), KEYS | st.text(max_size=5), st.text(max_size=12)), max_size=3))
def test_any_overrides(overrides: list[tuple[str, str, str]]) -> None:
    check(VALID, tuple(f"{a}.{b}={value}" for a, b, value in overrides))


@pytest.mark.parametrize("text", FILES, ids=["job", "ai-platform", "vertex"])
def test_every_beginning_of_a_valid_file(text: str) -> None:
    for end in range(0, len(text), 3):
        check(text[:end])
