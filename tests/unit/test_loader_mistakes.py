"""Job files with one mistake each: its place, its code, the message and the hint."""

from __future__ import annotations

import pytest

from cloudgpu.jobspecs.diagnostics import MAX_PROBLEMS, SpecError
from cloudgpu.jobspecs.dialects import convert
from cloudgpu.jobspecs.loading.loader import load_text

HEAD = "name: job\nrun: python train.py\ncode: null\n"
"""Three valid lines; the tested text begins in line 4."""


@pytest.mark.parametrize(
    ("added", "place", "message", "hint"),
    [
        # inputs and outputs
        (
            "inputs: {data: bucket/digits}",
            "4:16 bad-input",
            "expected file://, s3://, gs:// or az:// and a folder, not `bucket/digits`",
            "write data: s3://BUCKET/FOLDER",
        ),
        ("inputs: {../data: s3://b/d}", "4:10 bad-path", "`../data` leads out of the job's folder, or nowhere", ""),
        (
            "inputs: [data]",
            "4:9 wrong-type",
            "expected keys and values, not a list",
            "write each as KEY: VALUE on its own line",
        ),
        (
            "outputs: [results, /tmp/model]",
            "4:20 bad-path",
            "`/tmp/model` is not in the job's folder",
            "write it relative to the folder of the code",
        ),
        ("outputs: .", "4:10 bad-path", "`.` leads out of the job's folder, or nowhere", ""),
        # keys
        (
            "acelerator: L4",
            "4:1 unknown-key",
            "there is no key `acelerator` here",
            "did you mean resources.accelerator?",
        ),
        (
            "accelerator: L4",
            "4:1 unknown-key",
            "there is no key `accelerator` here",
            "write it as resources.accelerator or roles.ROLE.accelerator",
        ),
        ("resorces: {}", "4:1 unknown-key", "there is no key `resorces` here", "did you mean resources?"),
        ("resources:\n  regoin: x", "5:3 unknown-key", "there is no key `regoin` here", "did you mean region?"),
        (
            "resources: {use_spot: true}",
            "4:13 unknown-key",
            "there is no key `use_spot` here",
            "write it as resources.market: spot",
        ),
        ("resources: {env: {}}", "4:13 unknown-key", "there is no key `env` here", "write it as env"),
        (
            "\u00a0env: {}",
            "4:1 unknown-key",
            "there is no key `\\xa0env` here",
            "write `env`; there is NO-BREAK SPACE (U+00A0) at character 1",
        ),
        ("workdir: .", "4:1 unknown-key", "there is no key `workdir` here", "write it as code"),
        (
            "еnv: {}",
            "4:1 unknown-key",
            "there is no key `еnv` here",
            "write `env`; there is CYRILLIC SMALL LETTER IE (U+0435) at character 1",
        ),
        (
            "ｅnv: {}",
            "4:1 unknown-key",
            "there is no key `ｅnv` here",
            "write `env`; there is FULLWIDTH LATIN SMALL LETTER E (U+FF45) at character 1",
        ),
        ("roles: {worker: {nodez: 2}}", "4:18 unknown-key", "there is no key `nodez` here", "did you mean nodes?"),
        (
            "1: x",
            "4:1 unknown-key",
            "there is no key `1` here",
            (
                "known here: name, resources, roles, image, code, inputs, outputs, labels, setup, run, args, env, "
                "launcher, job_dir, checkpoint, priority, recover, retry, limits"
            ),
        ),
        # values out of their domain
        (
            "launcher: torchrunn",
            "4:11 unknown-value",
            "expected auto, none, torchrun, tensorflow, horovod or mpi, not `torchrunn`",
            "did you mean torchrun?",
        ),
        (
            "resources: {cloud: gpc}",
            "4:20 unknown-value",
            "expected local, aws, gcp, vertex or azure, not `gpc`",
            "did you mean gcp?",
        ),
        (
            "resources: {cloud: [aws, gpc]}",
            "4:26 unknown-value",
            "expected local, aws, gcp, vertex or azure, not `gpc`",
            "did you mean gcp?",
        ),
        (
            "resources: {market: PREEMPTIBLE}",
            "4:21 unknown-value",
            "expected on-demand, spot, flex-start or reservation, not `PREEMPTIBLE`",
            "did you mean spot?",
        ),
        (
            "resources: {market: [spot, spot]}",
            "4:28 duplicate-entry",
            "`spot` is in this list twice",
            "delete one of them",
        ),
        (
            "resources: {region: []}",
            "4:21 empty-list",
            "this list is empty",
            "write at least one entry, or delete the key",
        ),
        (
            "roles:\n  cheif: {}",
            "5:3 unknown-value",
            "expected chief, worker, parameter_server or evaluator, not `cheif`",
            "did you mean chief?",
        ),
        ("resources: {nodes: two}", "4:20 bad-value", "expected a whole number from 1 to 1000, not `two`", ""),
        ("resources: {nodes: -3}", "4:20 bad-value", "expected a whole number from 1 to 1000, not `-3`", ""),
        ("resources: {nodes: 1.0}", "4:20 bad-value", "expected a whole number from 1 to 1000, not `1.0`", ""),
        ("resources: {nodes: 1_0}", "4:20 bad-value", "expected a whole number from 1 to 1000, not `1_0`", ""),
        (
            "resources: {nodes: ٣}",
            "4:20 bad-value",
            "expected a whole number from 1 to 1000, not `٣`",
            "there is ARABIC-INDIC DIGIT THREE (U+0663) at character 1",
        ),
        (
            "resources: {nodes: 123456789012345678901234567890}",
            "4:20 bad-value",
            "expected a whole number from 1 to 1000, not `123456789012345678901234567890`",
            "",
        ),
        ("priority: 101", "4:11 bad-value", "expected a whole number from 0 to 100, not `101`", ""),
        ("priority: -1", "4:11 bad-value", "expected a whole number from 0 to 100, not `-1`", ""),
        ("priority: 0.5", "4:11 bad-value", "expected a whole number from 0 to 100, not `0.5`", ""),
        ("priority: high", "4:11 bad-value", "expected a whole number from 0 to 100, not `high`", ""),
        ("resources: {nodes: }", "4:20 bad-value", "expected a whole number from 1 to 1000, not nothing", ""),
        (
            "resources: {disk: 100}",
            "4:19 bad-size",
            "expected a size such as 500MB, 100GB or 2TB, not `100`",
            "write 100GB",
        ),
        (
            "resources: {disk: 10GBB}",
            "4:19 bad-size",
            "expected a size such as 500MB, 100GB or 2TB, not `10GBB`",
            "write 10GB",
        ),
        ("resources: {disk: 999999999TB}", "4:19 bad-value", "expected a disk from 1GB to 65TB, not `999999999TB`", ""),
        (
            "resources: {accelerator: L4:0}",
            "4:26 bad-value",
            "expected more than 0 and at most 1024 GPUs a machine, not `L4:0`",
            "",
        ),
        (
            "resources: {accelerator: [T4, L4:1.5]}",
            "4:31 bad-value",
            "expected a number of GPUs such as 8, or a part of one such as 1/8, not `L4:1.5`",
            "",
        ),
        (
            "resources: {accelerator: {memory: 24}}",
            "4:35 bad-size",
            "expected a size such as 500MB, 100GB or 2TB, not `24`",
            "write 24GB",
        ),
        (
            "resources: {accelerator: {count: 2}}",
            "4:26 bad-accelerator",
            "expected either a name, as in L4:1, or a memory size, not keys and values",
            "write {memory: 24GB..} for any GPU with 24 GB or more",
        ),
        (
            "resources: {accelerator: [L4, none]}",
            "4:31 bad-accelerator",
            "`none` (the CPU is enough) stands alone",
            "write accelerator: none",
        ),
        (
            "resources: {accelerator: }",
            "4:26 wrong-type",
            "expected an accelerator such as L4:1, or none, not nothing",
            "",
        ),
        (
            "limits: {duration: 12}",
            "4:20 bad-duration",
            "expected a duration such as 90s, 30m, 12h, 1d or 1h30m, not `12`",
            "write 12h, 12m or 12s",
        ),
        ("limits: {duration: 400d}", "4:20 bad-value", "expected a duration from 1s to 366d, not `400d`", ""),
        (
            "limits: {cost: $50}",
            "4:16 bad-amount",
            "expected an amount in US dollars such as 50 USD, not `$50`",
            "write 50 USD",
        ),
        ("limits: {price: 0 USD/h}", "4:17 bad-value", "expected an amount greater than 0, not `0 USD/h`", ""),
        (
            "checkpoint: {every: sometimes}",
            "4:21 bad-value",
            "expected auto or a duration such as 90s, 30m, 12h, 1d or 1h30m, not `sometimes`",
            "",
        ),
        (
            "checkpoint: {every: [auto]}",
            "4:21 bad-value",
            "expected auto or a duration such as 90s, 30m, 12h, 1d or 1h30m, not a list",
            "",
        ),
        (
            "retry: {preemption: often}",
            "4:21 bad-value",
            "expected unlimited or a whole number from 0 to 10000, not `often`",
            "",
        ),
        (
            "job_dir: http://x/y",
            "4:10 bad-job-dir",
            "expected a path or file://, s3://, gs:// or az://, not `http://x/y`",
            "",
        ),
        (
            "job_dir: s3://${BUCKET}/x",
            "4:10 variable-in-url",
            "`${BUCKET}` is not expanded in a job file",
            'write the value, or let the shell do it: --set "job_dir=…"',
        ),
        ("job_dir: $HOME/jobs", "4:10 variable-in-url", None, None),
        ("job_dir: {aws: s3://b/$RUN}", "4:16 variable-in-url", None, None),
        (
            "inputs: {data: s3://$BUCKET/d}",
            "4:16 variable-in-url",
            "`$BUCKET` is not expanded in a job file",
            'write the value, or let the shell do it: --set "inputs.data=…"',
        ),
        ("job_dir: s3://", "4:10 bad-job-dir", "`s3://` names no folder", "write s3://NAME/FOLDER"),
        ("image: a b", "4:8 bad-image", "expected the name of a container image, without spaces, not `a b`", ""),
        ("image: ''", "4:8 empty-value", "this is empty", "write a value, or delete the key"),
        # wrong kinds
        (
            "setup: {a: b}",
            "4:8 wrong-type",
            "expected a text, not keys and values",
            'put quotes around a text that contains ": " or begins with [ or {',
        ),
        (
            "setup: [a, [b]]",
            "4:12 wrong-type",
            "expected a text, not a list",
            'put quotes around a text that contains ": " or begins with [ or {',
        ),
        (
            "args: --epochs",
            "4:7 wrong-type",
            "expected a list, not `--epochs`",
            "write [a, b], or each item on a line that begins with -",
        ),
        (
            "env: [A=1]",
            "4:6 wrong-type",
            "expected keys and values, not a list",
            "write each as KEY: VALUE on its own line",
        ),
        (
            "checkpoint: often",
            "4:13 wrong-type",
            "expected keys and values, not `often`",
            "write each as KEY: VALUE on its own line",
        ),
        ("roles: {}", "4:8 empty-value", "this is empty", "write a value, or delete the key"),
        # environment
        (
            "env: {1A: x}",
            "4:7 bad-env-name",
            "`1A` is no name for an environment variable",
            "use letters, digits and _ only",
        ),
        (
            "env: {CLOUDGPU_RANK: x}",
            "4:7 bad-env-name",
            "`CLOUDGPU_RANK` is a name cloudgpu itself uses",
            "do not begin with CLOUDGPU_",
        ),
        ("env:\n  TOKEN:", "5:9 no-value", "`TOKEN` has no value", 'write "" for an empty one'),
        ("env: {A: [b]}", "4:10 wrong-type", "expected a text as value of `A`, not a list", "put quotes around it"),
        # keys that belong together
        ("roles: {chief: {nodes: 2}}", "4:24 one-chief", "there is one chief", "write nodes: 1"),
        (
            "resources: {nodes: 2}\nroles: {worker: {}}",
            "4:13 twice",
            "`resources.nodes` and `roles` exclude each other",
            "write nodes in each of the roles",
        ),
        # names in no table
        ("resources: {accelerator: A1000}", "4:26 unknown-accelerator", None, None),
        ("resources: {region: us-esat-1}", "4:21 unknown-region", None, None),
        ("resources: {machine_type: n1-standrad-8}", "4:27 unknown-machine-type", None, None),
        # YAML
        ("name: again", "4:1 duplicate-key", "the key `name` is here twice, first in line 1", "keep one of them"),
        ("env:\n\tA: b", "5:1 tab", "a tab cannot indent", "indent with spaces"),
        (
            "env: !!python/object/apply:os.system {A: b}",
            "4:6 tag",
            "the tag `!!python/object/apply:os.system` is not allowed",
            "delete it: the text is enough",
        ),
        ("env: {<<: {A: b}}", "4:7 merge-key", "merge keys (<<) are not supported", "write the keys out"),
        ("env: &e {A: *e}", "4:13 cyclic-alias", "*e stands inside the value it repeats", ""),
        ("env: *e", "4:6 unknown-alias", "there is no anchor &e above", ""),
        ("---\nname: b", "4:1 several-documents", "a second document begins here", "one job a file"),
        ("? [a]\n: b", "4:3 key-not-text", "a key must be a text", "put quotes around {{…}} and the like"),
        ("env: {A: {{ secret }}}", "4:11 key-not-text", "a key must be a text", "put quotes around {{…}} and the like"),
        ('env: {A: "\\0"}', "4:10 nul-character", "a NUL character cannot be part of a text", "delete the \\0"),
        (
            "image: a: b",
            "4:9 yaml-syntax",
            "this is not valid YAML: mapping values are not allowed in this context",
            'put quotes around a text that contains ": "',
        ),
        (
            "env: {A: \x1b[31m}",
            "4:10 unseen-character",
            "there is a character that cannot be seen (U+001B)",
            "delete it, or save the file as UTF-8",
        ),
        (
            "env: {A: a\u202eb}",
            "4:11 unseen-character",
            "there is a character that cannot be seen (U+202E)",
            "delete it, or save the file as UTF-8",
        ),
    ],
)
def test_one_mistake(added: str, place: str, message: str | None, hint: str | None) -> None:
    text = HEAD + added
    with pytest.raises(SpecError) as caught:
        load_text(text, "job.yaml")
    (found,) = caught.value.diagnostics
    assert f"{found.line}:{found.column} {found.code}" == place
    if message is not None:
        assert (found.message, found.hint) == (message, hint)
    assert found.place.startswith("job.yaml:")
    assert found.code == "unseen-character" or found.masked or found.source == text.split("\n")[found.line - 1]


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("trainingInput: {scaleTier: BASIK, pythonModule: t}", ["unknown-scale-tier"]),
        ("trainingInput: {scaleTier: BASIC_TPU, pythonModule: t}", ["no-tpu"]),
        ("trainingInput: {scaleTier: CUSTOM, masterType: cloud_tpu, pythonModule: t}", ["no-tpu"]),
        ("trainingInput: {scaleTier: CUSTOM, pythonModule: t}", ["missing-machine-type"]),
        ("workerPoolSpecs: {machineSpec: {}}", ["wrong-value"]),
        ("workerPoolSpecs: []", ["no-machines"]),
        ("jobSpec: {workerPoolSpecs: []}", ["no-machines"]),
        ("workerPoolSpecs: [{machineSpec: {machineType: n1-standard-4}}]", ["no-program"]),
    ],
)
def test_a_mistake_in_another_tool_s_file_brings_no_other_with_it(text: str, codes: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        load_text(text)
    assert [found.code for found in caught.value.diagnostics] == codes


@pytest.mark.parametrize("url", ["az://$web@account/x", "az://$root@account", "s3://b/a$/x", "s3://b/5$"])
def test_a_dollar_is_not_always_a_variable(url: str) -> None:
    assert load_text(f"{HEAD}job_dir: {url}").spec.job_dir == url


@pytest.mark.parametrize(
    "text", ["a: *{long}", "code: {long}", "inputs: {{{long}: x}}", "limits: {{cost: {digits}}}", "&{long} a: *{long}"]
)
def test_messages_are_bounded(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_text(text.format(long="a" * 70_000, digits="1" * 70_000))
    for found in caught.value.diagnostics:
        assert len(found.message) + len(found.hint) < 1_000


def test_suggestions_for_unknown_keys_end_with_the_problems_that_are_reported() -> None:
    keys = {f"kez{number}": "1" for number in range(20_000)}
    for document in ({"trainingInput": keys}, {"workerPoolSpecs": [{"machineSpec": keys}]}):
        assert len(convert(document).problems) == MAX_PROBLEMS


def test_what_a_flag_or_a_field_says_is_removed_by_its_own_name() -> None:
    part = "{machineSpec: {machineType: a, gpuPartitionSize: 1g.10gb}, containerSpec: {imageUri: i}}"
    with pytest.raises(SpecError) as caught:
        load_text(f"workerPoolSpecs: [{part}]")
    assert "remove gpuPartitionSize to go on without it" in [found.hint for found in caught.value.diagnostics]
