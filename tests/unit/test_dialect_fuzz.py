"""A dialect returns a Conversion for every document, and never raises."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from cloudgpu.jobspecs.dialects import Conversion, ai_platform, convert, vertex
from cloudgpu.jobspecs.dialects.gcloud_flags import FLAGS, apply
from cloudgpu.jobspecs.models import JobSpec

FIELDS = [
    *(ai_platform.JOB, ai_platform.TRAINING_INPUT, ai_platform.SCHEDULING, ai_platform.REPLICA_CONFIG),
    *(ai_platform.ACCELERATOR_CONFIG, ai_platform.DISK_CONFIG, vertex.CUSTOM_JOB_SPEC, vertex.WORKER_POOL),
    *(vertex.MACHINE, vertex.CONTAINER, vertex.PACKAGE, vertex.SCHEDULING, vertex.RESERVATION, vertex.ENV),
]
WORDS = [
    *("CUSTOM", "BASIC_GPU", "n1-standard-8", "standard_gpu", "cloud_tpu", "a2-highgpu-1g", "NVIDIA_TESLA_K80"),
    *("NVIDIA_TESLA_T4", "us-central1", "1", "4", "-1", "1e9", "7200s", "infs", "true", "", "gs://b/x", "²"),
]
KEYS = st.sampled_from(sorted({name for fields in FIELDS for name in fields}))
VALUES = st.recursive(
    st.sampled_from(WORDS) | st.none() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=4), inner, max_size=5),
    max_leaves=25,
)
TRAINING = st.dictionaries(st.sampled_from(sorted(ai_platform.TRAINING_INPUT)), VALUES, max_size=8)
POOL = st.dictionaries(st.sampled_from(sorted(vertex.WORKER_POOL)), VALUES, max_size=4)


def check(conversion: Conversion) -> None:
    for problem in conversion.problems:
        assert problem.message
        assert problem.code
    assert all(isinstance(note, str) and note for note in conversion.notes)
    if not conversion.refused:
        with suppress(ValidationError):  # a value that is invalid in a job file: the loader reports it at its origin
            JobSpec.model_validate(conversion.job)


@settings(max_examples=60, deadline=None)
@given(training=TRAINING | VALUES)
def test_ai_platform(training: object) -> None:
    check(convert({"trainingInput": training}))
    custom = {"scaleTier": "CUSTOM", "masterType": "n1-standard-8", **(training if isinstance(training, dict) else {})}
    check(convert({"trainingInput": custom}))


@settings(max_examples=60, deadline=None)
@given(pools=st.lists(POOL | VALUES, max_size=3) | VALUES, rest=st.dictionaries(KEYS, VALUES, max_size=3))
def test_vertex(pools: object, rest: dict[str, object]) -> None:
    check(
        convert({**{name: value for name, value in rest.items() if name != "trainingInput"}, "workerPoolSpecs": pools})
    )


@settings(max_examples=60, deadline=None)
@given(
    document=st.none() | st.dictionaries(KEYS | st.just("training_input"), VALUES, max_size=4),
    flags=st.dictionaries(
        st.sampled_from([flag.name for flag in FLAGS]), st.sampled_from(WORDS) | st.text(max_size=20), max_size=6
    ),
    user_args=st.none() | st.lists(st.text(max_size=5), max_size=3),
)
def test_flags(document: dict[str, object] | None, flags: dict[str, str], user_args: list[str] | None) -> None:
    check(apply(document, flags, user_args))
