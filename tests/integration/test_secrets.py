"""Secrets of real jobs on the target `local`: programs get them, nothing keeps them, and kills lose none for ever."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from cloudgpu.control.errors import NotRunningError, SubmitError
from cloudgpu.control.jobs import Job, ensure_supervisor
from cloudgpu.control.store.store import open_store
from cloudgpu.control.supervisor.supervisor import Supervisor
from cloudgpu.protocol.jobdir import Heartbeat, node_key
from cloudgpu.protocol.sealed_secrets import new_key, public_key
from cloudgpu.provisioners.local.machine import marked
from cloudgpu.tests.standins.canary import new_canary, places_in_folder, watched_command_lines
from cloudgpu.tests.standins.commands import Commands
from cloudgpu.tests.standins.local_jobs import home, stop_supervisor, submit_text

__all__ = ["home"]

WAIT_S = 180.0
PROGRAM = """\
name: quiet
setup: test "$CANARY" = "$(cat "$WANTED")"
run: |
  test "$CANARY" = "$(cat "$WANTED")" || exit 3
  echo "the value is $CANARY"
  printf '%s' "$CANARY" | head -c 10; sleep 1.2; printf '%s' "$CANARY" | tail -c +11; echo
  printf '%s' "$CANARY" | base64 >&2
  touch "$BEGUN-$CLOUDGPU_ATTEMPT-$CLOUDGPU_NODE"
  while [ ! -e "$OVER" ]; do sleep 0.05; done
"""


@dataclasses.dataclass
class Files:
    """Files by which a test and its programs communicate; the first two are outside of all that is searched."""

    folder: Path
    canary: str

    @property
    def text(self) -> str:
        names = {"WANTED": self.folder / "wanted", "BEGUN": self.folder / "begun", "OVER": self.folder / "over"}
        return PROGRAM + "env:\n" + "".join(f"  {name}: {str(path)!r}\n" for name, path in names.items())

    @property
    def begun(self) -> list[str]:
        return sorted(path.name.removeprefix("begun-") for path in self.folder.glob("begun-*"))

    def end(self) -> None:
        (self.folder / "over").touch()


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    """Yield the files of a test; at its end, neither a file of cloudgpu nor any command line ever had the canary."""
    folder, canary = tmp_path / "files", new_canary()
    (tmp_path / "code").mkdir()
    folder.mkdir()
    (folder / "wanted").write_text(canary)
    monkeypatch.setenv("CANARY", canary)
    with watched_command_lines(canary) as lines:
        yield Files(folder, canary)
    assert lines == []
    assert places_in_folder(canary, tmp_path, but=[folder / "wanted", folder / "other"]) == []
    assert not list((tmp_path / "home").rglob("secrets-*.box"))


def until(job: Job, met: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + WAIT_S
    while not met():
        assert time.monotonic() < end and not job.refresh().done, f"{what}: {[one.message for one in job.events()]}"
        time.sleep(0.05)


def finish(job: Job) -> None:
    assert job.wait(timeout_s=WAIT_S), [event.message for event in job.events()]
    assert job.refresh().state == "succeeded", [event.message for event in job.events()]


def texts(job: Job) -> list[str]:
    return [line.text for line in job.logs().read()[0] if line.stream != "agent"]


def waits(job: Job) -> bool:
    return job.refresh().cause == "secrets"


def lose(job: Job, node: str) -> None:
    """Kill all processes of a node, its agent first."""
    for process in marked(f"{job.attempts()[-1].token}/{node}"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def test_a_program_gets_its_secrets_and_nothing_keeps_them(home: Path, files: Files, tmp_path: Path) -> None:
    job = submit_text(files.text + "secrets: [CANARY]\n", tmp_path / "code")
    until(job, lambda: files.begun == ["1-worker-0.1"], "it begins")
    assert places_in_folder(files.canary, home) == []
    files.end()
    finish(job)
    said = texts(job)
    assert said[0] == "the value is ***"
    assert "".join(said[1:-1]) == "***" and "***" in said[-1]
    assert job.spec.secrets == {"CANARY": "env:CANARY"}
    with pytest.raises(NotRunningError, match="needs no secrets any more"):
        job.provide_secrets()


def test_a_further_run_reads_them_again(
    home: Path, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor dropped them when the job ended. A path stays that of the first submission."""
    monkeypatch.chdir(tmp_path)
    text = files.text + "secrets: {CANARY: env:CANARY, OTHER: 'file:other'}\n"
    other = files.folder / "other"
    other.write_text(files.canary)
    job = submit_text(text.replace("file:other", f"file:{other}"), tmp_path / "code")
    until(job, lambda: files.begun == ["1-worker-0.1"], "it begins")
    files.end()
    finish(job)
    (home.parent / "code").rename(tmp_path / "moved")
    job.resume()
    finish(job)
    assert files.begun == ["1-worker-0.1", "2-worker-0.1"]
    other.unlink()
    with pytest.raises(SubmitError, match="OTHER"):
        job.resume()
    monkeypatch.delenv("CANARY")
    with pytest.raises(SubmitError, match="CANARY is not set"):
        job.resume()
    assert job.refresh().state == "succeeded"


def test_a_job_whose_supervisor_was_killed_waits_without_machines(
    home: Path, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cloudgpu = Commands(capsys, tmp_path)
    job = submit_text(files.text + "secrets: [CANARY]\n", tmp_path / "code")
    until(job, lambda: files.begun == ["1-worker-0.1"], "it begins")
    stop_supervisor(signal.SIGKILL)
    lose(job, "worker-0.1")  # its agent ends, too
    ensure_supervisor()
    until(job, lambda: waits(job), "it waits")
    assert "without machines" in job.reason and f"cloudgpu secrets provide {job.id}" in job.reason
    assert job.attempts()[-1].launched is None
    assert f"cloudgpu secrets provide {job.id}" in " ".join(cloudgpu.well("status", job.id).out.split())
    assert cloudgpu.well("status", job.id, "--json").json["cause"] == "secrets"
    monkeypatch.delenv("CANARY")
    with pytest.raises(SubmitError, match="CANARY is not set here"):
        job.provide_secrets()
    given = cloudgpu.well("secrets", "provide", job.id, "--secret", f"CANARY=file:{files.folder / 'wanted'}")
    assert given.out == f"{job.id}: given to the supervisor: CANARY\n"
    until(job, lambda: "2-worker-0.1" in files.begun, "it goes on")
    files.end()
    finish(job)
    assert (job.cause, job.reason) == ("", "")


def test_a_file_is_read_again_by_the_next_supervisor(home: Path, files: Files, tmp_path: Path) -> None:
    job = submit_text(files.text + "secrets: {CANARY: file:../files/wanted}\n", tmp_path / "code")
    until(job, lambda: files.begun == ["1-worker-0.1"], "it begins")
    stop_supervisor(signal.SIGKILL)
    lose(job, "worker-0.1")
    files.end()
    finish(job)
    assert files.begun == ["1-worker-0.1", "2-worker-0.1"]


def test_a_supervisor_that_replaces_another_has_its_secrets(
    home: Path, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cloudgpu.control.supervisor import outdated, supervisor_lock

    job = submit_text(files.text + "secrets: [CANARY]\n", tmp_path / "code")
    until(job, lambda: files.begun == ["1-worker-0.1"], "it begins")
    there = supervisor_lock.running()
    assert there is not None and outdated.end(there)
    monkeypatch.delenv("CANARY")
    lose(job, "worker-0.1")
    ensure_supervisor()
    files.end()
    finish(job)
    assert files.begun == ["1-worker-0.1", "2-worker-0.1"]


def test_a_replaced_node_gets_them_from_the_submitters_side(home: Path, files: Files, tmp_path: Path) -> None:
    text = files.text + "secrets: [CANARY]\nlauncher: torchrun\n"
    job = submit_text(text, tmp_path / "code", nodes=2)
    until(job, lambda: files.begun == ["1-worker-0.1", "1-worker-1.1"], "it begins")
    stop_supervisor(signal.SIGKILL)
    lose(job, "worker-1.1")
    ensure_supervisor()
    until(job, lambda: waits(job), "it waits")
    for _ in range(10):  # the supervisor polls meanwhile
        assert "worker-1.2 waits for its secrets, without a machine" in job.refresh().reason
        time.sleep(0.1)
    job.provide_secrets()
    until(job, lambda: "1-worker-1.2" in files.begun, "it is replaced")
    files.end()
    finish(job)
    assert (len(job.attempts()), job.reason) == (1, "")


def test_a_machine_that_waits_is_named_with_what_to_do(home: Path, files: Files, tmp_path: Path) -> None:
    files.end()
    job = submit_text(files.text + "secrets: [CANARY]\n", tmp_path / "code", supervise=False)
    supervisor = Supervisor(open_store())
    supervisor.vault.give(job.id, {"CANARY": files.canary})

    def ticks(met: Callable[[], bool], what: str) -> None:
        def tick() -> bool:
            supervisor.tick(woken={job.id})
            job.refresh()
            return met()

        until(job, tick, what)

    ticks(lambda: job.state == "starting", "it is launched")
    supervisor.vault.forget(job.id)
    ticks(lambda: job.cause == "secrets", "it waits")
    assert job.reason.startswith("worker-0.1 waits for its secrets, and is paid for meanwhile, at most 30 min: ")
    assert job.reason.endswith(f"Give them: `cloudgpu secrets provide {job.id}`")
    # Another program that may write to the job dir asks with a key of its own.
    job_dir, key = job.open_dir(), node_key(1, "worker-0.1", "heartbeat.json")
    beat = Heartbeat.read(job_dir, key)
    assert beat is not None
    forged = dataclasses.replace(beat, secrets_key=public_key(new_key()), secrets_proof=beat.secrets_proof)
    supervisor.vault.give(job.id, {"CANARY": files.canary})
    job_dir.put(key, forged.to_bytes())
    supervisor.tick(woken={job.id})
    refused = [event.message for event in job.events() if event.kind == "trouble"]
    sent = [event.message for event in job.events() if event.kind == "secrets"]
    assert sent or refused == ["worker-0.1 asks for secrets without the proof that it is this job's machine: refused"]
    ticks(lambda: job.cause == "" and job.reason == "", "it has them")
    with contextlib.suppress(AssertionError):
        ticks(lambda: job.done, "it ends")
    assert job.state == "succeeded"


def test_what_is_missing_is_an_error_before_anything_is_made(
    home: Path, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CANARY")
    for secrets, why in [("[CANARY]", "CANARY is not set here"), ("{CANARY: file:nothing}", "cannot be read")]:
        with pytest.raises(SubmitError, match=why):
            submit_text(files.text + f"secrets: {secrets}\n", tmp_path / "code")
    assert not (home / "jobs").exists()


def test_flags_give_secrets_and_a_value_among_them_is_refused(
    home: Path, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cloudgpu = Commands(capsys, tmp_path)
    code = tmp_path / "code"
    (code / "job.yaml").write_text("name: flags\nresources: {cloud: local}\nrun: 'env; ls -A'\n")
    (files.folder / "dot.env").write_text('MY_TOKEN="hidden one"\nLR=0.1\n')
    (code / ".env").write_text(f"CANARY={files.canary[:7]}\n")
    flags = ["--env-file", str(files.folder / "dot.env"), "--env", "HOME", "--secret", "CANARY=env-file:.env"]
    monkeypatch.chdir(code)
    done = cloudgpu.well("submit", "job.yaml", *flags)
    lines = done.out.splitlines()
    assert {"MY_TOKEN=***", "CANARY=***", "LR=0.1", f"HOME={os.environ['HOME']}"} <= set(lines)
    assert ".env" not in lines and "job.yaml" in lines
    assert "secrets, stored nowhere: MY_TOKEN" in done.err and "stored with the job: LR" in done.err
    assert places_in_folder("hidden one", home) == []
    literal = cloudgpu.run("submit", "job.yaml", "--secret", "X=hf_hidden")
    assert literal.code == 2
    assert "hf_hidden" not in literal.out + literal.err
    assert "never the value itself" in " ".join(literal.err.split())


def test_the_sealed_box_is_removed_at_the_end(home: Path, files: Files, tmp_path: Path) -> None:
    job = submit_text(files.text + "secrets: [CANARY]\n", tmp_path / "code")
    until(job, lambda: files.begun == ["1-worker-0.1"], "it begins")
    folder = Path(unquote(job.job_dir.removeprefix("file://"))) / "attempts/0001/nodes/worker-0.1"
    assert not list(folder.glob("secrets-*"))  # the agent has read it
    (folder / "secrets-of-an-agent-that-was-killed.box").write_bytes(b"x")
    files.end()
    finish(job)
