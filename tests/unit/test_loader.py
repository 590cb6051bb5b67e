"""Job files: every bad input of a table gives exactly these problems, at exactly these places."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cloudgpu.jobspecs.diagnostics import Diagnostic, Problem, SpecError
from cloudgpu.jobspecs.loading.loader import load_bytes, load_file, load_text
from cloudgpu.jobspecs.loading.overrides import Override
from cloudgpu.jobspecs.loading.source import MAX_BYTES
from cloudgpu.tests.standins.clocks import fast

HEAD = "name: job\nrun: python train.py\ncode: null\n"
"""Three correct lines: what is added begins in line 4."""

FULL = """\
name: digits
resources:
  accelerator: [L4:1, T4:1]
  cloud: [gcp, aws, azure]
  region: us-central1
  machine_type: n1-standard-8
  market: [spot, on-demand]
  nodes: 1
  disk: 100GB
code: null
setup: pip install -r requirements.txt
run: [python, train.py]
args: [--epochs, "10"]
env: {LR: "0.01"}
launcher: auto
job_dir: s3://bucket/jobs
checkpoint: {every: 10m, keep: 3}
retry: {preemption: unlimited, failure: 1}
limits: {duration: 12h, cost: 50 USD, price: 5 USD/h, gpu_idle: 1h}
"""


def mistakes(text: str, **kwargs: object) -> list[Diagnostic]:
    with pytest.raises(SpecError) as caught:
        load_text(text, "job.yaml", **kwargs)  # type: ignore[arg-type]
    assert all(found.file == "job.yaml" or not found.line for found in caught.value.diagnostics)
    return caught.value.diagnostics


def only(text: str, **kwargs: object) -> Diagnostic:
    (found,) = mistakes(text, **kwargs)
    return found


def test_a_complete_job_file_is_read() -> None:
    spec = load_text(FULL).spec
    assert [str(request) for request in spec.resources.accelerator] == ["L4:1", "T4:1"]
    assert spec.resources.market == ("spot", "on-demand")
    assert spec.run == ("python", "train.py")
    assert (spec.checkpoint.every, spec.limits.duration) == (600, 43_200)


def test_scalars_stay_as_they_were_written() -> None:
    text = HEAD + "env: {DEBUG: no, VERSION: 1.10, OCTAL: 0123, BIG: 1e3, DATE: 2026-01-02, Q: '1', HEX: 0x1F}\n"
    spec = load_text(text + "args: [1.10, on, ~tilde, 007]").spec
    assert spec.env == {
        "DEBUG": "no",
        "VERSION": "1.10",
        "OCTAL": "0123",
        "BIG": "1e3",
        "DATE": "2026-01-02",
        "Q": "1",
        "HEX": "0x1F",
    }
    assert spec.args == ("1.10", "on", "~tilde", "007")


def test_quotes_make_a_text_of_what_would_be_nothing() -> None:
    assert load_text(HEAD + 'env: {A: "null", B: "", C: "~"}').spec.env == {"A": "null", "B": "", "C": "~"}
    assert load_text("name: a\nrun: b\ncode:\n").spec.code is None


def test_aliases_of_bounded_size_are_read() -> None:
    spec = load_text(HEAD + "env: {A: &a text, B: *a}\nsetup: &c [x, y]\nargs: *c").spec
    assert spec.env == {"A": "text", "B": "text"}
    assert spec.args == ("x", "y")


def test_a_byte_order_mark_at_the_start_is_no_mistake() -> None:
    assert load_bytes(b"\xef\xbb\xbf" + HEAD.encode(), "job.yaml").spec.name == "job"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("My Job", "write my-job"),
        ("x; touch pwned; $(id)", "write x-touch-pwned-id"),
        ("../../etc", "write etc"),
        ("1job", ""),
        ("job%s{0}", "write job-s-0"),
        ("a" * 41, f"write {'a' * 40}"),
        ("jоb", "there is CYRILLIC SMALL LETTER O (U+043E) at character 2"),
        ("名前", "there is CJK UNIFIED IDEOGRAPH-540D (U+540D) at character 1"),
        ('"job\\n"', "write job"),
    ],
)
def test_names_that_are_none(name: str, hint: str) -> None:
    found = only(f"name: {name}\nrun: x\ncode: null")
    assert (found.line, found.column, found.code, found.hint) == (1, 7, "bad-name", hint)
    assert found.message.startswith(
        "expected a name of lower-case letters, digits and hyphens, beginning with a letter"
    )


@pytest.mark.parametrize(
    ("text", "line", "column", "code"),
    [
        ("", 1, 1, "empty-file"),
        ("# nothing\n\n", 1, 1, "empty-file"),
        ("---\n...\n", 1, 1, "empty-file"),
        ("- name: a\n", 1, 1, "not-a-mapping"),
        ("\n  just words\n", 2, 3, "not-a-mapping"),
        ("a: [1, 2\nb: 3\n", 2, 2, "yaml-syntax"),
        ("name: 'open\n", 1, 7, "yaml-syntax"),
        ("a:\n  b: 1\n c: 2\n", 3, 2, "yaml-syntax"),
        ("a: {" * 40, 1, 128, "too-deep"),
    ],
)
def test_no_document(text: str, line: int, column: int, code: str) -> None:
    found = only(text)
    assert (found.line, found.column, found.code) == (line, column, code)


def test_all_mistakes_of_a_file_are_said_at_once() -> None:
    found = mistakes(
        """\
name: My Job
resources:
  acelerator: L4
  cloud: [aws, gpc]
  region: [us-esat-1, us-east-1]
  nodes: two
  accelerator: [A1000:8, L4:0]
env: {A: b, A: c}
limits: {duration: 12, cost: 5}
"""
    )
    assert [(item.line, item.column, item.code) for item in found] == [
        (1, 1, "missing-key"),
        (1, 7, "bad-name"),
        (3, 3, "unknown-key"),
        (4, 16, "unknown-value"),
        (5, 12, "unknown-region"),
        (6, 10, "bad-value"),
        (7, 17, "unknown-accelerator"),
        (7, 26, "bad-value"),
        (8, 13, "duplicate-key"),
        (9, 20, "bad-duration"),
        (9, 30, "bad-amount"),
    ]


def test_a_misspelt_required_key_is_one_mistake() -> None:
    assert only("name: a\nrum: x\ncode: null").hint == "did you mean run?"
    assert only("name: a\ncommand: x\ncode: null").hint == "write it as run"
    assert only("name: a\nimgae: x\ncode: null").hint == "did you mean image?"


@pytest.mark.parametrize(
    ("line", "place"), [("", (1, 1)), ("run:\n", (3, 5)), ("roles: {chief: {image: i}, worker: {}}", (1, 1))]
)
def test_without_an_image_the_program_is_required(line: str, place: tuple[int, int]) -> None:
    found = only(f"name: a\ncode: null\n{line}")
    assert (found.line, found.column, found.code) == (*place, "missing-key")
    assert found.hint == "write run: python train.py, or name an image whose own entrypoint is the program"


def test_a_missing_program_is_said_beside_other_mistakes() -> None:
    assert {found.code for found in mistakes("name: A\ncode: null\nlauncher: x")} == {
        "missing-key", "bad-name", "unknown-value"
    }  # fmt: skip
    assert only("name: a\ncode: null\nimage: i j").code == "bad-image"


@pytest.mark.parametrize("line", ["image: i", "run: null\nimage: i", "roles: {chief: {image: i}, worker: {image: j}}"])
def test_an_images_own_entrypoint_is_a_program(line: str) -> None:
    assert load_text(f"name: a\ncode: null\nargs: [b]\n{line}").spec.run is None


def test_nothing_of_the_users_is_a_format_or_a_pattern() -> None:
    found = mistakes(HEAD + "'{0.__class__}%s(': 1\nlauncher: '.*'\nresources: {accelerator: 'A100(', region: '.*'}")
    assert "{0.__class__}%s(" in found[0].message
    assert {item.code for item in found} == {
        "unknown-key", "unknown-value", "unknown-accelerator", "unknown-region"
    }  # fmt: skip


def test_a_mistake_in_an_alias_is_shown_where_it_is_used() -> None:
    found = only("name: &n a\nrun: x\ncode: null\nlauncher: *n")
    assert (found.line, found.column) == (4, 11)


# --- Files ------------------------------------------------------------------------------------------------------------


def file_mistake(path: Path) -> Diagnostic:
    with fast(), pytest.raises(SpecError) as caught:
        load_file(path)
    (found,) = caught.value.diagnostics
    assert found.file == str(path)
    return found


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(HEAD)
    missing = file_mistake(tmp_path / "job.yml")
    assert (missing.code, missing.hint) == ("missing-file", "did you mean job.yaml?")
    assert file_mistake(tmp_path).code == "not-a-file"
    os.mkfifo(tmp_path / "fifo")
    assert file_mistake(tmp_path / "fifo").code == "not-a-file"
    assert file_mistake(Path("/dev/zero")).code == "not-a-file"
    assert file_mistake(tmp_path / "job.yaml" / "x").code == "unreadable-file"
    assert file_mistake(tmp_path / ("x" * 300)).code == "unreadable-file"
    (tmp_path / "loop").symlink_to("loop")
    assert file_mistake(tmp_path / "loop").code == "unreadable-file"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(HEAD)
    path.chmod(0)
    assert file_mistake(path).code == "unreadable-file"


@pytest.mark.parametrize(
    ("data", "line", "column", "code"),
    [
        (b"\x7fELF\x02\x01\x01\x00", 1, 1, "unseen-character"),
        (b"name: a\x00b", 1, 8, "binary-file"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", 1, 1, "binary-file"),
        (b"name: a\nrun: caf\xe9\n", 2, 9, "wrong-encoding"),
        ("name: a".encode("utf-16"), 1, 1, "wrong-encoding"),
        (b"name: a\nx: " + b"a" * MAX_BYTES, 1, 1, "file-too-large"),
        (b"x: y\n" * 2_000_000, 1, 1, "file-too-large"),
    ],
)
def test_bytes_that_are_no_text(data: bytes, line: int, column: int, code: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(data)
    found = file_mistake(path)
    assert (found.line, found.column, found.code) == (line, column, code)


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)),
        "a: [" + "x," * 400_000 + "]",
        "".join(f"key-{number}: v\n" for number in range(60_000)),
        "".join(f"k: {number}\n" for number in range(60_000)),
        HEAD + "env: {" + ",".join(f"{number}x: y" for number in range(20_000)) + "}",
        HEAD + "".join(f"key-{number}: v\n" for number in range(20_000)),
        "[" * 500_000,
        "a: " + "- " * 400_000,
        "a: " + "{a: " * 200_000,
        "a: '" + "x" * 900_000,
        "? " * 400_000,
        "&a " * 300_000,
    ],
    ids=lambda text: text[:16],
)
def test_hostile_yaml_is_refused_at_once(text: str) -> None:
    with fast():
        found = mistakes(text)
    assert 1 <= len(found) <= 100


# --- The folder to ship -----------------------------------------------------------------------------------------------


def test_the_code_folder_is_looked_for_beside_the_job_file(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    path = tmp_path / "job.yaml"
    path.write_text("name: a\nrun: b\ncode: src\n")
    assert load_file(path).base == tmp_path
    path.write_text("name: a\nrun: b\ncode: scr\n")
    found = file_mistake(path)
    assert (found.line, found.column, found.code) == (3, 7, "missing-code")
    assert found.hint == f"looked for {tmp_path / 'scr'}"
    path.write_text("name: a\nrun: b\ncode: job.yaml\n")
    assert file_mistake(path).message == "this is a file, not a folder"


@pytest.mark.parametrize("code", ["/", "/.", ".", "..", "project/.."])
def test_the_root_and_the_home_folder_are_not_shipped(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "project").mkdir()
    found = only(f"name: a\nrun: b\ncode: {code}\n", base=tmp_path)
    assert (found.line, found.column, found.code) == (3, 7, "code-too-wide")


# --- Overrides --------------------------------------------------------------------------------------------------------


def test_overrides_win_over_the_file() -> None:
    loaded = load_text(
        HEAD + "resources: {region: us-east1}\nargs: [a, b]",
        overrides=[
            "resources.region=us-west1",
            "resources.accelerator=[L4:1, T4:2]",
            "env.EMPTY=",
            "env.TEXT=a: b = {c}",
            "code=null",
            'env.QUOTED="null"',
            "args.1=c",
            "limits.cost=5 USD",
        ],
    )
    assert loaded.spec.resources.region == ("us-west1",)
    assert len(loaded.spec.resources.accelerator) == 2
    assert loaded.spec.env == {"EMPTY": "", "TEXT": "a: b = {c}", "QUOTED": "null"}
    assert loaded.spec.args == ("a", "c")


def test_overrides_may_be_a_mapping() -> None:
    assert load_text(HEAD, overrides={"resources.nodes": "4"}).spec.resources.nodes.most == 4


@pytest.mark.parametrize(
    ("override", "place", "code"),
    [
        ("resources.regoin=x", "--set resources.regoin", "unknown-key"),
        ("resources.nodes=two", "--set resources.nodes", "bad-value"),
        ("resources.region=us-esat-1", "--set resources.region", "unknown-region"),
        ("resources.cloud=[aws, gpc]", "--set resources.cloud", "unknown-value"),
        ("resources.nodes", "--set resources.nodes", "bad-override"),
        ("=x", "--set ", "bad-override"),
        ("a..b=x", "--set a..b", "bad-override"),
        ("name.x=y", "--set name.x", "bad-override"),
        ("args.0=y", "--set args.0", "wrong-type"),
        ("args=[a", "--set args", "yaml-syntax"),
        ("args=[!!int 3]", "--set args", "tag"),
        ("env={A: 1, A: 2}", "--set env", "duplicate-key"),
        ("env.A=\udcff", "--set env.A", "bad-override"),
        ("env.A=\x00", "--set env.A", "bad-override"),
        ("env.A=a\u202eb", "--set env.A", "bad-override"),
        ("args=[a, 'b\u2066']", "--set args", "unseen-character"),
        (Override(("env", "A"), "a\x1b[31m", "--env A"), "--env A", "bad-override"),
        (Override(("args",), ["a", "\u202e"], "-- ARGS"), "-- ARGS", "bad-override"),
        (".".join("a" * 5000) + "=x", "--set " + ("a." * 30)[:59] + "…", "bad-override"),
    ],
)
def test_bad_overrides(override: str, place: str, code: str) -> None:
    found = only(HEAD, overrides=[override])
    assert (found.place, found.line, found.code) == (place, 0, code)


def test_a_text_with_nul_is_nowhere_taken_for_a_path() -> None:
    assert "nul-character" in {found.code for found in mistakes('name: a\nrun: b\ncode: "src\\0"')}


def test_what_is_found_later_has_a_place_in_the_file() -> None:
    loaded = load_text(HEAD + "resources: {region: us-east1, nodes: 2}", overrides=["resources.nodes=3"])
    region, nodes, zone = (
        loaded.diagnose(Problem(("resources", key), "late", "found late", in_key=True))
        for key in ("region", "nodes", "zone")
    )
    assert (region.line, region.column) == (4, 13)
    assert nodes.place == "--set resources.nodes"
    assert (zone.line, zone.column) == (4, 1)


def test_an_override_does_not_change_what_an_alias_repeats() -> None:
    text = "name: a\nrun: b\ncode: null\nroles:\n  chief: &r {machine_type: n1-standard-4}\n  worker: *r\n"
    roles = load_text(text, overrides=["roles.worker.machine_type=n1-standard-8"]).spec.effective_roles()
    assert [role.machine_type for role in roles.values()] == ["n1-standard-4", "n1-standard-8"]


# --- Dialects ---------------------------------------------------------------------------------------------------------


def test_mistakes_in_a_foreign_file_have_places_in_that_file() -> None:
    text = "trainingInput:\n  scaleTier: CUSTOM\n  masterTyp: n1-standard-8\n  region: us-central1\n"
    assert (3, 3) in [(found.line, found.column) for found in mistakes(text)]


# --- Without libyaml --------------------------------------------------------------------------------------------------

WITHOUT_LIBYAML = """
import sys
sys.modules["yaml._yaml"] = None  # as where PyYAML was built without libyaml
from cloudgpu.jobspecs.loading import yaml_reader
from cloudgpu.jobspecs.diagnostics import SpecError
from cloudgpu.jobspecs.loading.loader import load_text
from cloudgpu.jobspecs.loading.overrides import Override
assert yaml_reader._Parser.__module__ == "yaml.loader"
print(load_text(sys.argv[1]).spec.env)
for text in sys.argv[2:]:
    try:
        load_text(text)
    except SpecError as error:
        print([(found.line, found.column, found.code) for found in error.diagnostics])
"""


def test_the_pure_python_parser_does_as_well() -> None:
    texts = [
        HEAD + "env: {A: no, B: '', C: 1.10}",
        HEAD + "env:\n\tA: b",
        HEAD + "env: [a",
        HEAD + "name: b\nenv: {1: x}",
    ]
    done = subprocess.run([sys.executable, "-c", WITHOUT_LIBYAML, *texts], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "{'A': 'no', 'B': '', 'C': '1.10'}",
        "[(5, 1, 'tab')]",
        "[(4, 8, 'yaml-syntax')]",
        "[(4, 1, 'duplicate-key'), (5, 7, 'bad-env-name')]",
    ]


def test_a_mistake_in_a_foreign_file_is_said_once() -> None:
    text = (
        "trainingInput:\n  scaleTier: CUSTOM\n  masterType: n1-standrad-8\n  pythonModule: a.b\n  region: us-central\n"
    )
    places = [(found.line, found.column, found.code) for found in mistakes(text, overrides=["code=null"])]
    assert len(places) == len(set(places))
    assert {(3, 15, "unknown-machine-type"), (5, 11, "unknown-region")} <= set(places)
