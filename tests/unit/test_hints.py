"""Hints for mistakes that users make in haste or by habit from another tool."""

from __future__ import annotations

import pytest

from cloudgpu.jobspecs import catalog
from cloudgpu.jobspecs.diagnostics import SpecError
from cloudgpu.jobspecs.loading.loader import load_text

HEAD = "name: job\nrun: python train.py\ncode: null\n"
QUOTES = 'put quotes around a text that contains ": "'


@pytest.mark.parametrize(
    ("added", "place", "hint"),
    [
        # counts of accelerators
        ("resources: {accelerator: A100 x8}", "4:26", "write A100:8"),
        ("resources: {accelerator: A100*8}", "4:26", "write A100:8"),
        ("resources: {accelerator: A100x8}", "4:26", "write A100:8"),
        ("resources: {accelerator: 8:H100}", "4:26", "write H100:8"),
        ("resources: {accelerator: 8xH100}", "4:26", "write H100:8"),
        ("resources: {accelerator: 8 x H100}", "4:26", "write H100:8"),
        # their names
        ("resources: {accelerator: NVIDIA_TESLA_L4}", "4:26", "did you mean L4?"),
        ("resources: {accelerator: NVIDIA_TESLA_H100}", "4:26", "did you mean H100-80GB or H100-NVL-94GB?"),
        ("resources: {accelerator: A100-SXM}", "4:26", "did you mean A100-40GB or A100-80GB?"),
        (
            "resources: {accelerator: А100}",
            "4:26",
            "did you mean A100, A10G or H100?; there is CYRILLIC CAPITAL LETTER A (U+0410) at character 1",
        ),
        (
            "resources: {region: us-eаst1}",
            "4:21",
            "did you mean us-east1, us-east4 or us-east5?; there is CYRILLIC SMALL LETTER A (U+0430) at character 5",
        ),
        ("resources: {accelerator: [L4:1, l4:1]}", "4:33", "delete one of them"),
        ("resources: {accelerator: [A100, A100-40GB]}", "4:33", "delete one of them"),
        # memory and disks
        ("resources: {accelerator: {memory: 24GiB..}}", "4:35", "write 24GB.."),
        ("resources: {accelerator: {memory: 24..}}", "4:35", "write 24GB.."),
        ("resources: {accelerator: {memory: 24..80}}", "4:35", "write 24GB..80GB"),
        ("resources: {accelerator: {memory: ..80}}", "4:35", "write ..80GB"),
        ("resources: {disk: 999999999999}", "4:19", ""),
        # clouds, markets, roles, machine types
        ("resources: {cloud: Amazon}", "4:20", "did you mean aws?"),
        ('resources: {cloud: "aws, gcp"}', "4:20", "write [aws, gcp]"),
        ('resources: {cloud: "Amazon, Google Cloud"}', "4:20", "write [aws, gcp]"),
        ("resources: {market: true}", "4:21", "did you mean spot?"),
        ('resources: {market: "spot, on-demand"}', "4:21", "write [spot, on-demand]"),
        ("roles: {master: {}}", "4:9", "did you mean chief?"),
        ("roles: {ps: {}}", "4:9", "did you mean parameter_server?"),
        ("resources: {machine_type: [a, b]}", "4:27", "write one value: machine_type takes no list"),
        # time and money
        ("limits: {duration: 12 hours}", "4:20", "write 12h"),
        ("limits: {duration: 1 h}", "4:20", "write 1h"),
        ("limits: {duration: 2w}", "4:20", "write 14d"),
        ("limits: {duration: 1.5h}", "4:20", "write 1h30m"),
        ("limits: {duration: never}", "4:20", "delete the key: without it there is no limit"),
        ("checkpoint: {every: 10 minutes}", "4:21", "write 10m"),
        ("limits: {price: 5 USD}", "4:17", "write 5 USD/h"),
        ("limits: {price: $5/h}", "4:17", "write 5 USD/h"),
        ("limits: {price: 5 EUR/h}", "4:17", "convert it to US dollars, as in 5 USD/h"),
        (
            "limits: {cost: €50}",
            "4:16",
            "convert it to US dollars, as in 50 USD; there is EURO SIGN (U+20AC) at character 1",
        ),
        ('limits: {cost: "1,000 USD"}', "4:16", "write 1000 USD"),
        ("limits: {cost: 5 USD/h}", "4:16", "write 5 USD; a limit per hour is limits.price"),
        # one value in place of a mapping, and no value
        ("checkpoint: 10m", "4:13", "write checkpoint: {every: 10m}"),
        ("retry: 3", "4:8", "write retry: {failure: 3}"),
        ("limits: 12h", "4:9", "write limits: {duration: 12h}"),
        ("limits: 5 USD/h", "4:9", "write limits: {price: 5 USD/h}"),
        ("resources: L4:1", "4:12", "write resources: {accelerator: L4:1}"),
        ("limits:\n  # duration: 12h", "4:8", "write KEY: VALUE below it, or delete the key"),
        ("args: [a, null]", "4:11", 'write "" for an empty text'),
        # YAML
        ("resources: {region: ${R}}", "4:22", "put quotes around a text that contains ${"),
        ("image: a: b", "4:9", QUOTES),
        ("setup: x\n  image: a", "5:8", "give this key the indentation of the key above"),
    ],
)
def test_one_hint(added: str, place: str, hint: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_text(HEAD + added)
    (found,) = caught.value.diagnostics
    assert (f"{found.line}:{found.column}", found.hint) == (place, hint)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("NVIDIA_T4", "T4"),
        ("NVIDIA-T4", "T4"),
        ("NVIDIA-A100", "A100-40GB"),
        ("NVIDIA-H100", "H100-80GB"),
        ("A100-SXM4-80GB", "A100-80GB"),
        ("A100-80G", "A100-80GB"),
        ("A100-40G", "A100-40GB"),
        ("H100-MEGA", "H100-80GB"),
        ("H200-SXM", "H200-141GB"),
    ],
)
def test_names_that_people_write_are_known(written: str, name: str) -> None:
    found = catalog.find_accelerator(written)
    assert found is not None
    assert found.name == name


KUBERNETES = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: a}\nspec: {template: {}}\n"
TUNING = "displayName: a\nstudySpec: {}\nmaxTrialCount: 3\nparallelTrialCount: 1\ntrialJobSpec: {}\n"
SKYPILOT = "name: a\nresources: {accelerators: A100:8, use_spot: true}\nworkdir: .\nsetup: a\nrun: b\n"
SMALL_SKYPILOT = "resources: {accelerators: A100:8, infra: aws}\nrun: b\n"
DSTACK = "type: task\nname: a\npython: '3.12'\ncommands: [a]\nresources: {gpu: 24GB}\n"


@pytest.mark.parametrize(
    ("text", "what", "others"),
    [
        (KUBERNETES, "a Kubernetes manifest", 0),
        (TUNING, "a hyperparameter tuning job of Vertex AI", 0),
        (SKYPILOT, "a SkyPilot task", 3),
        (SMALL_SKYPILOT, "a SkyPilot task", 3),
        (DSTACK, "a dstack configuration", 4),
    ],
)
def test_a_file_of_another_tool_is_recognised(text: str, what: str, others: int) -> None:
    with pytest.raises(SpecError) as caught:
        load_text(text)
    first, *rest = caught.value.diagnostics
    assert (first.line, first.message) == (1, f"this looks like {what}, not a job file")
    assert len(rest) == others


@pytest.mark.parametrize("text", ["workdir: .", "envs: {A: b}", "type: a", "kind: Job", "num_nodes: 2"])
def test_one_key_of_another_tool_is_a_mistake_of_its_own(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_text(HEAD + text)
    assert [found.code for found in caught.value.diagnostics] == ["unknown-key"]
