"""Secrets without jobs: sources, boxes, masking, the vault and its socket, what the loader says."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import json
import os
import socket
import stat
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudgpu.control import paths
from cloudgpu.control.errors import SourceError
from cloudgpu.control.secrets import channel
from cloudgpu.control.secrets.sources import absolute, files_of, read_env_file, read_values
from cloudgpu.control.secrets.vault import Vault, this_computer
from cloudgpu.jobspecs.diagnostics import SpecError
from cloudgpu.jobspecs.loading.loader import load_text
from cloudgpu.jobspecs.secrets import looks_secret, source_problem
from cloudgpu.protocol.jobdir import JobDir, JobRecord, NodeRecord
from cloudgpu.protocol.logs.reader import LogReader
from cloudgpu.protocol.logs.writer import LogWriter
from cloudgpu.protocol.sealed_secrets import BoxError, Recipient, new_key, open_box, public_key, seal
from cloudgpu.runtime.archive import pack, unpack
from cloudgpu.runtime.launchers import Addresses, ProgramContext, processes, setup_process
from cloudgpu.runtime.secrets.job_secrets import Request
from cloudgpu.runtime.secrets.masking import LineMasker
from cloudgpu.tests.standins.canary import new_canary, places, places_in_folder

HEAD = "name: s\ncode: null\nrun: 'true'\n"


def load(text: str, *overrides: str) -> dict[str, str]:
    return load_text(HEAD + text, overrides=list(overrides)).spec.secrets


def mistakes(text: str) -> list[tuple[str, str, str]]:
    with pytest.raises(SpecError) as caught:
        load(text)
    return [(one.code, one.message, one.hint) for one in caught.value.diagnostics]


# --- the job file -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sources"),
    [
        ("secrets: [A, B]", {"A": "env:A", "B": "env:B"}),
        ("secrets: A", {"A": "env:A"}),
        ("secrets: {A: , B: env:C, D: file:~/d, E: env-file:.env}", {"A": "env:A", "B": "env:C"}),
        ("secrets: {A: aws-secretsmanager://x, B: azure-keyvault://vault/s}", {"A": "aws-secretsmanager://x"}),
    ],
)
def test_a_job_file_names_secrets_and_their_sources(text: str, sources: dict[str, str]) -> None:
    assert load(text).items() >= sources.items()


def test_a_flag_adds_a_secret_to_a_list() -> None:
    assert load("secrets: [A]", "secrets.B=file:/b") == {"A": "env:A", "B": "file:/b"}
    assert load("", "secrets.B=file:/b") == {"B": "file:/b"}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("secrets: {A: hf_abcdefghij}", "bad-secret"),
        ("secrets: {A: 'http://x/y'}", "bad-secret"),
        ("secrets: {A: 'file:'}", "bad-secret"),
        ("secrets: {A: 'env:hf abc'}", "bad-secret"),
        ("secrets: [A, hf-abcdefghij]", "bad-env-name"),
        ("secrets: [A, A]", "duplicate-entry"),
        ("secrets: ['A=hf_abcdefghij']", "bad-env-name"),
        ("secrets: {CLOUDGPU_X: env:A}", "bad-env-name"),
        ("secrets: {OMPI_MCA_X: env:A}", "bad-env-name"),
        ("secrets: {A: [hf_abcdefghij]}", "wrong-type"),
        ("secrets: [A]\nenv: {A: x}", "twice"),
    ],
)
def test_mistakes_never_repeat_what_may_be_the_value(text: str, code: str) -> None:
    found = mistakes(text)
    assert [one[0] for one in found] == [code]
    assert "abcdefghij" not in str(found)


@pytest.mark.parametrize("text", ["secrets: 7\n", "secrets: {A: 7}\n", "secrets: [[A]]\n", "secrets: [{A: env:B}]\n"])
def test_odd_values_are_mistakes(text: str) -> None:
    assert mistakes(text)


def test_keys_that_look_secret_are_pointed_to_secrets() -> None:
    loaded = load_text(HEAD + "env: {WANDB_API_KEY: abc, LR: '1', TOKENIZERS_PARALLELISM: 'false', HF_TOKEN: ''}")
    assert [(one.code, one.hint) for one in loaded.warnings] == [
        ("secret-in-env", "write secrets: [WANDB_API_KEY] instead, and export it before `submit`")
    ]
    (found,) = mistakes("env: [WANDB_API_KEY]")
    assert found[2] == "write secrets: [WANDB_API_KEY] if their values are those of your shell"
    (found,) = mistakes("env: {WANDB_API_KEY: }")
    assert "secrets: [WANDB_API_KEY]" in found[2]


@pytest.mark.parametrize("name", ["AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "db_password", "OPENAI_APIKEY", "GITHUB_PAT"])
def test_names_that_look_secret(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize("name", ["MAX_TOKENS", "TOKENIZERS_PARALLELISM", "MONKEY", "KEYBOARD", "SSH_KEY_PATH", "PATH"])
def test_names_that_do_not(name: str) -> None:
    assert not looks_secret(name)


@settings(deadline=None)
@given(st.text(max_size=60))
def test_no_source_is_misread(text: str) -> None:
    """An arbitrary text, such as a value, is a source only in one of the documented forms."""
    if not source_problem(text):
        assert text.startswith(("env:", "file:", "env-file:", "aws-secretsmanager://", "gcp-", "azure-keyvault://"))


# --- sources ----------------------------------------------------------------------------------------------------------


def test_values_come_from_variables_files_and_dotenv_files(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("of the file\n")
    (tmp_path / ".env").write_text('# c\nexport A_KEY="two\nlines"\nOTHER=$A_KEY\n')
    written = {"F": "file:token", "A_KEY": "env-file:.env", "OTHER": "env-file:.env", "V": "env:W"}
    sources = absolute(written, tmp_path)
    values = {"F": "of the file", "A_KEY": "two\nlines", "OTHER": "$A_KEY", "V": "of the shell"}
    assert read_values(sources, {"W": "of the shell"}) == values
    assert files_of(sources) == [tmp_path / "token", tmp_path / ".env", tmp_path / ".env"]


def test_every_value_that_cannot_be_used_is_named_and_none_is_shown(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe-hidden")
    (tmp_path / "large").write_bytes(b"x" * (65 << 10))
    os.mkfifo(tmp_path / "fifo")
    sources = {name: f"file:{name}" for name in ("binary", "large", "fifo", "missing", ".")}
    sources = absolute(sources, tmp_path) | {"SHORT": "env:SHORT", "EMPTY": "env:EMPTY", "NO": "env:NO", "NUL": "env:N"}
    with pytest.raises(SourceError) as caught:
        read_values(sources, {"SHORT": "hid", "EMPTY": "", "N": "hidden\0value"})
    said = str(caught.value)
    assert all(name in said for name in (*sources, "UTF-8", "64 KiB", "not a file", "No such file", "empty", "export"))
    assert "hidden" not in said


@pytest.mark.parametrize("text", ["A\n", "A=1\n='hidden'\n", 'A="hidden\n'])
def test_a_damaged_dotenv_file_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    (tmp_path / ".env").write_text(text)
    with pytest.raises(SourceError, match=r"\.env:[12]: expected NAME=VALUE") as caught:
        read_env_file(tmp_path / ".env")
    assert "hidden" not in str(caught.value)


def test_files_of_secrets_are_not_shipped(tmp_path: Path) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text("pass\n")
    (folder / ".env").write_text("hidden")
    os.link(folder / ".env", folder / "again")
    packed = pack(folder, without=[tmp_path / "code/../code/.env", tmp_path / "missing"])
    unpack(packed.path, tmp_path / "out", packed.sha256)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["train.py"]
    packed.path.unlink()


# --- the vault and its socket -----------------------------------------------------------------------------------------


def test_a_new_supervisor_reads_files_again_and_asks_for_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_text("of the file")
    monkeypatch.setenv("V", "of another shell")
    sources = {"F": f"file:{tmp_path / 'f'}", "V": "env:V"}
    vault = Vault()
    here = this_computer()
    assert "V" in vault.missing("j", sources, here) and "F" not in vault.missing("j", sources, here)
    vault.give("j", {"V": "given"})
    assert vault.take("j", sources, here) == {"F": "of the file", "V": "given"}
    assert "F must be read on the computer that submitted" in vault.missing("j", sources, "elsewhere/1000")
    assert "given" not in repr(vault)
    (tmp_path / "f").unlink()
    assert "No such file" in vault.missing("j", sources, here)
    vault.forget("j")
    assert vault.all_values() == {}


@pytest.mark.parametrize("depth", [1, 40])
def test_values_reach_the_supervisor_by_its_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, depth: int) -> None:
    home = tmp_path.joinpath(*["folder"] * depth)  # longer than an address may be
    monkeypatch.setenv("CLOUDGPU_HOME", str(home))
    paths.state_dir()
    paths.supervisor_secrets().touch()  # of a supervisor that was killed
    woken: list[str] = []
    vault, value = Vault(), "é" * 100_000
    with channel.listening(vault, woken.append):
        assert stat.S_IMODE(paths.supervisor_secrets().stat().st_mode) == 0o600
        channel.give("j", {"A": value})
        assert (vault.all_values(), woken) == ({"j": {"A": value}}, ["j"])
        channel.carry()
    following = Vault()
    with channel.listening(following, woken.append):
        channel.hand_over()
    assert following.all_values() == {"j": {"A": value}}


@pytest.mark.parametrize(
    "message",
    [b"", b"x\n", b"[]\n", b"[" * 100_000 + b"\n", b'{"give": 1}\n', b'{"give": {"j": {"A": 1}}}\n', b"\xff\n"],
)
def test_a_strange_message_neither_ends_the_socket_nor_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, message: bytes
) -> None:
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path))
    vault = Vault()
    with channel.listening(vault, lambda _job: None):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(str(paths.supervisor_secrets()))
            stranger.sendall(message)
            stranger.shutdown(socket.SHUT_WR)
            assert stranger.recv(10) == b""
        channel.give("j", {"A": "value"})
    assert vault.all_values() == {"j": {"A": "value"}}
    assert "is not understood" in caplog.text


# --- boxes ------------------------------------------------------------------------------------------------------------


def recipient(key: str, **changes: Any) -> Recipient:
    return dataclasses.replace(Recipient("j", 1, "worker-0.1", key), **changes)


def test_a_box_is_opened_by_its_recipient_only() -> None:
    private, other = new_key(), new_key()
    to = recipient(public_key(private))
    box = seal(to, {"A": "value"}, "pass")
    assert open_box(box, private, to, "pass") == {"A": "value"}
    assert not places("value", {"box": box})
    for data, key, who, secrets_pass, why in [
        (box, other, to, "pass", "another key"),
        (box[:-1], private, to, "pass", "damaged"),
        (b"", private, to, "pass", "damaged"),
        (seal(recipient(to.key, node="worker-1.1"), {}, "pass"), private, to, "pass", "another job or attempt"),
        (seal(recipient(to.key, attempt=2), {}, "pass"), private, to, "pass", "another job or attempt"),
        (seal(recipient(to.key, job_id="k"), {}, "pass"), private, to, "pass", "another job or attempt"),
        (seal(to, {"A": "planted"}, "guess"), private, to, "pass", "job's supervisor"),
    ]:
        with pytest.raises(BoxError, match=why):
            open_box(data, key, who, secrets_pass)


def test_a_key_needs_the_proof_of_the_pass_for_this_node() -> None:
    to = recipient(public_key(new_key()))
    assert to.is_proved_by(to.proof("pass"), "pass")
    for other in (recipient(to.key, node="worker-1.1"), recipient(to.key, attempt=2), recipient("00" * 32)):
        assert not to.is_proved_by(other.proof("pass"), "pass")
    assert not any(to.is_proved_by(proof, "pass") for proof in ("", "\ud800", to.proof("guess")))
    assert not recipient("x").is_proved_by(recipient("x").proof("pass"), "pass")
    with pytest.raises(BoxError, match="not valid"):
        seal(recipient("00" * 32), {}, "pass")  # of small order: anybody could read what is encrypted to it


def test_an_agent_ignores_and_removes_boxes_that_others_have_planted(tmp_path: Path) -> None:
    job_dir = JobDir(tmp_path.as_uri(), make=True)
    said: list[str] = []
    request = Request.make("j", 1, "worker-0.1", "pass")
    key = request.recipient.box_key
    assert request.read(job_dir, {"A"}, said.append) is None
    for box in (b"rubbish", seal(request.recipient, {"A": "planted"}, ""), seal(request.recipient, {"B": "b"}, "pass")):
        job_dir.put(key, box)
        assert request.read(job_dir, {"A"}, said.append) is None
        assert not job_dir.exists(key)
    assert len(said) == 3
    job_dir.put(key, seal(request.recipient, {"A": "value", "B": "b"}, "pass"))
    assert request.read(job_dir, {"A"}, said.append) == {"A": "value"}
    assert not job_dir.exists(key)
    assert "_private" not in repr(request) and "pass" not in repr(request)


# --- the program's environment ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("launcher", ["none", "torchrun", "tensorflow", "mpi", "horovod"])
def test_programs_get_secrets_in_their_environment_and_never_in_a_command_line(tmp_path: Path, launcher: str) -> None:
    canary = new_canary()
    nodes = [NodeRecord(f"worker-{index}.1", "worker", index, index, 2) for index in range(2)]
    job = JobRecord("j", "n", "python train.py", args=["a"], setup="pip install x", env={"E": "1"})
    place = ProgramContext(job, str(tmp_path), 1, nodes[0], nodes, tmp_path, secrets={"CANARY": canary})
    from cloudgpu.protocol.jobdir import Address

    addresses: Addresses = {node.node: Address("127.0.0.1", 2000) for node in nodes}
    setup = setup_process(place, {})
    assert setup is not None
    found = [setup, *processes(launcher, place, {}, addresses)]
    for process in found:
        assert process.env["CANARY"] == canary
        assert canary not in str(process.command)
        assert [name for name, value in process.env.items() if canary in value] == ["CANARY"]
    assert canary not in repr(place)


# --- masking ----------------------------------------------------------------------------------------------------------


def masked_pieces(values: list[str], pieces: list[str]) -> str:
    masker = LineMasker()
    masker.add_values(values)
    found = [masker.mask_piece("stdout", 0, piece, partial=True) or "" for piece in pieces]
    return "".join(found) + "".join(text for _, _, text in masker.rest())


@settings(deadline=None)
@given(st.data())
def test_a_value_is_masked_however_its_line_is_cut(data: st.DataObject) -> None:
    letters = st.sampled_from("ab/é")
    value = data.draw(st.text(letters, min_size=4, max_size=12))
    text = data.draw(st.lists(st.one_of(st.just(value), st.text(letters, max_size=6)), max_size=6).map("".join))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    masked = masked_pieces([value], pieces)
    assert value not in masked
    assert value in text or masked == text


def test_lines_and_encodings_of_a_value_are_masked() -> None:
    value = '-----BEGIN-----\nabc"def+/=é\n}\n-----END-----'
    masker = LineMasker()
    masker.add_values([value, "abc"])
    encoded = [json.dumps(value), repr(value), base64.b64encode(value.encode()).decode(), "x=abc%22def%2B%2F%3D%C3%A9"]
    for text in [*value.split("\n"), *encoded]:
        assert 'bc"def' not in masker.mask(text) and "YmMiZGVm" not in masker.mask(text), text
    assert masker.mask("}") == "}" and masker.mask("abc") == "abc"  # too short: it would mask ordinary text


def test_values_that_begin_alike_or_overlap_are_masked_whole() -> None:
    values = ["tok-1234", "tok-1234-SECRETTAIL", "abcd", "cdef"]
    assert masked_pieces(values, ["x tok-1234", "-SECRET", "TAIL y"]) == "x *** y"
    assert masked_pieces(values, ["ab", "cdef", "-"]) == "***-"
    assert masked_pieces(values, ["tok-12", "3 tok-1234", "."]) == "tok-123 ***."


def test_large_values_are_masked_in_little_memory() -> None:
    value = "".join(f"{number:x}-" for number in range(12_000))  # about 56 kB
    masker = LineMasker()
    tracemalloc.start()
    try:
        masker.add_values([value])
        assert masker.mask_piece("stdout", 0, f"a{value[:40_000]}", partial=True) == "a"
        assert masker.mask_piece("stdout", 0, f"{value[40_000:]}b", partial=False) == "***b"
        assert tracemalloc.get_traced_memory()[1] < 20 * len(value)
    finally:
        tracemalloc.stop()


def test_a_log_masks_what_streams_write_in_turns(tmp_path: Path) -> None:
    job_dir, masker = JobDir(tmp_path.as_uri(), make=True), LineMasker()
    log = LogWriter(job_dir, 1, "worker-0.1", line_filter=masker)
    log.add("stdout", 0, "before: hidden-value")
    masker.add_values(["hidden-value"])
    log.add("stdout", 0, "a hidden-", True)
    log.add("stdout", 1, "b hidden-", True)
    log.add_agent_line("the program said hidden-value")
    log.add("stdout", 0, "value c", False)
    log.add("stdout", 1, "values", False)
    log.add("stderr", None, "hidden", True)
    assert log.close(30.0)
    texts = [line.text for line in LogReader(job_dir).read()[0]]
    assert texts == [
        "before: hidden-value",
        "a ",
        "b ",
        "the program said ***",
        "*** c",
        "***s",
        "hidden",
    ]


# --- the search itself ------------------------------------------------------------------------------------------------


def test_the_search_finds_a_canary_in_any_packing(tmp_path: Path) -> None:
    canary = new_canary()
    plain = canary.encode()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "text").write_bytes(b"x" + plain)
    packed = pack(tmp_path / "folder")
    found = {
        "clear": plain,
        "json": json.dumps({"a": canary}).encode(),
        "base64": base64.b64encode(plain),
        "gzip": gzip.compress(b"x") + gzip.compress(plain),
        "tar.gz": packed.path.read_bytes(),
        "nothing": b"canary",
    }
    packed.path.unlink()
    assert places(canary, found) == sorted(found.keys() - {"nothing"})
    (tmp_path / "link").symlink_to(canary.replace("/", "_"))
    assert places_in_folder(canary, tmp_path) == [str(tmp_path / "folder" / "text")]
