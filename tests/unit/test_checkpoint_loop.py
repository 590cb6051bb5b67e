"""The Checkpointer's training loop: signals and stop orders, progress reports, and failing disks."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

psutil = pytest.importorskip("psutil")
torch = pytest.importorskip("torch")

from cloudgpu.runtime import Checkpointer, CheckpointError, write_output  # noqa: E402
from cloudgpu.tests.standins.checkpoints import restarted  # noqa: E402


class Model:
    """A counter: the smallest object with a state_dict."""

    def __init__(self) -> None:
        self.weight = torch.zeros(4000)

    def state_dict(self) -> dict[str, Any]:
        return {"weight": self.weight}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weight.copy_(state["weight"])


@pytest.fixture(autouse=True)
def _no_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("CLOUDGPU_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def train(steps: int, *, stop: int | None = None, **options: Any) -> tuple[Checkpointer, Model]:
    """Train, and wait for each save: steps this short would end before the first save is written."""
    model = Model()
    ckpt = restarted(model=model, **{"every": 5, **options})
    for step in ckpt.steps(steps):
        if step == stop:
            break
        model.weight += 1
        ckpt.wait()
    return ckpt, model


def saved(folder: Path | str = "checkpoints") -> list[int]:
    return sorted(int(commit.parent.name[:8]) for commit in Path(folder).glob("*/COMMIT.json"))


def writers() -> list[int]:
    """Return the process ids of this process's checkpoint writers."""
    alive = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    return [child.pid for child in alive if "cloudgpu.runtime.checkpoint.writer" in child.cmdline()]


def files(folder: str) -> list[Path]:
    return [path for path in Path(folder).rglob("*") if path.is_file()]


def soon(expected: Any, look: Callable[[], Any]) -> None:
    """Wait until `look` returns `expected`. Work after a commit, such as removing old checkpoints, is asynchronous."""
    end = time.monotonic() + 180
    while look() != expected and time.monotonic() < end:
        time.sleep(0.01)
    assert look() == expected


@contextmanager
def full_disk(size: int = 2000) -> Iterator[None]:
    """Limit the file size of the writers: the kernel fails a write part way, as on a full disk."""
    soon(True, lambda: bool(writers()))  # the writer is started asynchronously when the loop begins
    limits = {pid: resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in writers()}
    assert limits
    for pid, (_, hard) in limits.items():
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        for pid in limits.keys() & set(writers()):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, limits[pid])


def test_alone_it_saves_beside_the_program() -> None:
    ckpt, _ = train(17)
    soon([10, 15, 17], saved)
    assert (ckpt.step, ckpt.finished) == (17, True)
    ckpt, model = train(17)
    assert (ckpt.step, ckpt.finished, model.weight[0].item()) == (17, True, 17)
    assert saved() == [10, 15, 17]


def test_a_finished_run_can_be_prolonged() -> None:
    train(5)
    ckpt, model = train(8)
    assert (ckpt.step, model.weight[0].item()) == (8, 8)


def test_resumes_where_it_was_saved_and_keeps_plain_values() -> None:
    model = Model()
    ckpt = restarted(model=model, every=2, folder="elsewhere")
    ckpt.state["best"] = None
    for step in ckpt.steps(20):
        if step == 7:
            break
        ckpt.state["best"] = {"step": step}
        ckpt.wait()
    ckpt = restarted(model=model, folder=Path("elsewhere"))
    assert (ckpt.step, ckpt.state, ckpt.finished) == (6, {"best": {"step": 5}}, False)


def test_early_stopping_is_an_end() -> None:
    model = Model()
    ckpt = restarted(model=model, every=100)
    for step in ckpt.steps(20):
        model.weight += 1
        if step == 6:
            ckpt.finish()
    assert (ckpt.step, saved()) == (7, [7])
    ckpt, model = train(20)
    assert (ckpt.step, model.weight[0].item()) == (7, 7)


def test_save_is_made_between_two_steps() -> None:
    model = Model()
    ckpt = restarted(model=model, every=100)
    for step in ckpt.steps(20):
        if step == 3:
            ckpt.save()
        if step == 6:
            break
        model.weight += 1
    ckpt, model = train(20, stop=4)
    assert (ckpt.step, model.weight[0].item()) == (4, 4)


def test_end_of_epoch() -> None:
    ckpt = restarted(loader=[1, 2, 3], every=100)
    assert [(ckpt.epoch, ckpt.step) for _ in ckpt.batches(epochs=2) if ckpt.end_of_epoch] == [(0, 2), (1, 5)]
    ckpt = restarted(loader=map(str, [1, 2]), folder="b")
    for _ in ckpt.batches(epochs=1):
        with pytest.raises(CheckpointError, match="no length"):
            _ = ckpt.end_of_epoch


def test_notice_saves_and_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CLOUDGPU_NOTICE", str(tmp_path / "notice.json"))
    monkeypatch.setenv("CLOUDGPU_LISTENING", str(tmp_path / "listening"))
    model = Model()
    ckpt = restarted(model=model, every=100)
    assert (tmp_path / "listening").exists()
    with pytest.raises(SystemExit) as end:
        for step in ckpt.steps(20):
            model.weight += 1
            if step == 6:
                (tmp_path / "notice.json").write_text(json.dumps({"reason": "preempt", "deadline": 0}))
    assert (end.value.code, saved()) == (75, [7])
    assert not (tmp_path / "listening").exists()
    # After a second notice before the first step nothing new exists, so nothing is saved.
    with pytest.raises(SystemExit) as end:
        train(20)
    assert (end.value.code, saved()) == (75, [7])
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL  # the loop that never started has ended, too
    (tmp_path / "notice.json").unlink()
    assert train(20)[1].weight[0].item() == 20
    # After the loop no code handles notices; the agent must be able to see that.
    restarted(model=Model())
    assert not (tmp_path / "listening").exists()


def test_a_notice_to_save_is_obeyed_once_and_training_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CLOUDGPU_NOTICE", str(tmp_path / "notice.json"))
    notice = {"reason": "maintenance", "deadline": time.time() + 3600, "action": "save"}
    ckpt = restarted(model=Model(), every=16, keep=9)
    for step in ckpt.steps(20):
        ckpt.wait()
        if step in {2, 3}:
            (tmp_path / "notice.json").write_text(json.dumps({**notice, "id": f"{step}"}))
    # Saved after steps 2 and 3, then every 16 / 4 steps, and at the end.
    assert saved() == [3, 4, 8, 12, 16, 20]
    assert caplog.text.count("notice: maintenance: saving now") == 2


def test_what_it_leaves_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CLOUDGPU_NOTICE", str(tmp_path / "notice.json"))
    monkeypatch.setenv("CLOUDGPU_OUTCOME", str(tmp_path / "outcome.json"))
    monkeypatch.setenv("CLOUDGPU_INTERRUPTED_EXIT", "143")
    with pytest.raises(SystemExit) as end:
        for step in restarted(model=Model(), every=100).steps(20):
            if step == 6:
                (tmp_path / "notice.json").write_text(json.dumps({"reason": "preempt", "deadline": time.time() + 60}))
    assert end.value.code == 143
    outcome = json.loads((tmp_path / "outcome.json").read_bytes())
    name, (record,) = outcome.pop("checkpoint"), outcome.pop("trainings")
    assert (record["rank"], record["pid"], record["left"]) == (0, os.getpid(), True)
    assert Path("checkpoints", name, "COMMIT.json").exists()
    assert outcome == {
        "code": 75,
        "outcome": "interrupted",
        "step": 7,
        "saved_step": 7,
        "reason": f"notice: preempt: stopped at step 7, saved as {name}",
    }
    (tmp_path / "notice.json").unlink()
    train(20)
    assert json.loads((tmp_path / "outcome.json").read_bytes())["outcome"] == "done"
    with pytest.raises(CheckpointError, match="no state of optimizer"):
        restarted(model=Model(), optimizer=Model())
    assert json.loads((tmp_path / "outcome.json").read_bytes())["code"] == 70


def test_steps_beside_a_loader_is_refused() -> None:
    """The position in a loader that the program iterates by itself would not be saved."""
    with pytest.raises(CheckpointError, match=r"use batches\(epochs=...\), or make the Checkpointer without a loader"):
        next(Checkpointer(loader=[1, 2], every=1).steps(3))


def test_only_what_running_again_does_not_heal_is_called_the_programs_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The launcher does not retry after exit codes 70 and 73; after a storage outage the job must be retried."""
    outcome = tmp_path / "outcome.json"
    monkeypatch.setenv("CLOUDGPU_OUTCOME", str(outcome))
    ckpt = restarted(model=Model(), every=1)
    for step in ckpt.steps(2):
        ckpt.state["odd"] = object() if step else None
        if step:
            break
        ckpt.wait()
    with pytest.raises(CheckpointError, match=r"odd is a builtins\.object"):
        list(ckpt.steps(3))
    assert json.loads(outcome.read_bytes())["code"] == 70
    outcome.unlink()
    for file in Path("checkpoints").glob("*/rank-00000.bin"):
        file.unlink()
        file.symlink_to(file.name)  # cannot be opened, which may be temporary
    with pytest.raises(CheckpointError, match="no checkpoint could be restored"):
        restarted(model=Model())
    assert json.loads(outcome.read_bytes())["code"] == 76


def test_a_loop_of_somebody_else() -> None:
    loader = [1, 2, 3]

    def run(stop: int | None) -> list[tuple[int, int]]:
        ckpt = restarted(model=Model(), loader=loader, every=1)
        seen: list[tuple[int, int]] = []
        ckpt.begin()
        ckpt.begin()
        while ckpt.epoch < 3:
            for batch in ckpt.open_epoch():
                if len(seen) == stop:
                    ckpt.end(finished=False)
                    ckpt.end()  # has no effect any more
                    return seen
                seen.append((ckpt.epoch, batch))
                ckpt.end_step(epoch_ended=ckpt.end_of_epoch)
                ckpt.wait()
        ckpt.end()
        assert ckpt.finished
        return seen

    expected = [(epoch, batch) for epoch in range(3) for batch in loader]
    assert run(4) == expected[:4]
    assert run(2) == expected[4:6]
    assert run(None) == expected[6:]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_loops_that_end_in_another_order_than_they_began() -> None:
    """An exception that is kept may hold a loop: the garbage collector then ends it later, in any thread."""
    loops = [Checkpointer(model=Model(), folder=f"{number}", every=100).steps(20) for number in range(3)]
    for loop in loops:
        next(loop)
    loops[0].close()  # type: ignore[attr-defined]
    thread = threading.Thread(target=loops[2].close)  # type: ignore[attr-defined]
    thread.start()
    thread.join()
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(SystemExit) as end:
        list(loops[1])
    assert (end.value.code, saved("1")) == (75, [1])
    # Only handlers of finished loops remain: a signal must end the program, as it would without them.
    program = """
import os, signal
from cloudgpu.runtime import Checkpointer
loops = [Checkpointer(folder=name, every=100).steps(20) for name in "45"]
for loop in (*loops, *loops):
    next(loop)
for loop in loops:
    loop.close()
os.kill(os.getpid(), signal.SIGTERM)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_signal_saves_and_ends_and_reaches_the_program(number: signal.Signals) -> None:
    heard: list[int] = []
    before = signal.signal(number, lambda received, _frame: heard.append(received))
    try:
        ckpt = restarted(model=Model(), every=100)
        with pytest.raises(SystemExit) as end:
            for step in ckpt.steps(20):
                if step == 6:
                    os.kill(os.getpid(), number)
        assert (end.value.code, saved(), heard) == (75, [7], [number])
        os.kill(os.getpid(), number)  # after the loop only the program's handler is installed
        assert heard == [number, number]
    finally:
        signal.signal(number, before)


def test_a_child_that_was_forked_ends_of_a_signal() -> None:
    """multiprocessing ends daemon processes with a signal at exit, and waits for them."""
    program = """
import multiprocessing, signal, time
from cloudgpu.runtime import Checkpointer
for step in Checkpointer(every=100).steps(2):
    if step == 0:
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True)
        child.start()
    else:
        child.terminate()
        child.join()
        print(child.exitcode == -signal.SIGTERM)
"""
    ended = subprocess.run([sys.executable, "-c", program], check=False, timeout=120, stdout=subprocess.PIPE, text=True)
    assert (ended.returncode, ended.stdout) == (0, "True\n")


def test_in_a_thread_signals_are_left_alone() -> None:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(train(7)[0].step))
    thread.start()
    thread.join()
    assert results == [7]


def test_notice_with_a_full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("cloudgpu.runtime.checkpoint.save.saver.LAST_PAUSE", 0)
    monkeypatch.setenv("CLOUDGPU_NOTICE", str(tmp_path / "notice.json"))
    for stop, code in ((7, 76), (3, 77)):  # after the save of step 5 and before the first save
        with pytest.raises(SystemExit) as end:
            ckpt = restarted(model=Model(), every=5, folder=f"until {stop}")
            for step in ckpt.steps(20):
                ckpt.wait()
                if step == stop:
                    resource_limits = full_disk()
                    resource_limits.__enter__()
                    (tmp_path / "notice.json").write_text("{}")
        resource_limits.__exit__(None, None, None)
        (tmp_path / "notice.json").unlink()
        assert end.value.code == code


def test_full_disk_then_room_again(caplog: pytest.LogCaptureFixture) -> None:
    model = Model()
    ckpt = restarted(model=model, every=2)
    for step in ckpt.steps(20):
        model.weight += 1
        ckpt.wait()
        if step == 5:
            limits = full_disk()
            limits.__enter__()
        if step == 15:
            limits.__exit__(None, None, None)
            assert saved() == [2, 4]  # the older checkpoints that were kept
    soon([16, 18, 20], saved)
    soon(10, lambda: len(files("checkpoints")))  # and the fence; no files of the five failed saves
    complaints = [record for record in caplog.records if "could not be saved" in record.message]
    assert [record.levelname for record in complaints] == ["WARNING", "ERROR", "ERROR"]  # failures 1, 2 and 4
    assert "File too large" in complaints[0].message
    assert "4 saves in a row have failed; the newest checkpoint is 00000004" in complaints[2].message
    healed = [record.message for record in caplog.records if "saving works again" in record.message]
    assert len(healed) == 1
    assert healed[0].startswith("saving works again: step 16 is saved as 00000016-")


def test_the_end_that_cannot_be_saved_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("cloudgpu.runtime.checkpoint.save.saver.LAST_PAUSE", 0)
    monkeypatch.setenv("CLOUDGPU_OUTCOME", str(tmp_path / "outcome.json"))
    ckpt = restarted(model=Model(), every=2)
    with pytest.raises(SystemExit) as end:
        for step in ckpt.steps(4):
            ckpt.wait()
            if step == 3:
                limits = full_disk()
                limits.__enter__()
    limits.__exit__(None, None, None)
    assert end.value.code == 74
    outcome = json.loads((tmp_path / "outcome.json").read_bytes())
    assert (outcome["code"], outcome["outcome"], outcome["step"], outcome["saved_step"]) == (74, "store", 4, 2)
    assert outcome["checkpoint"].startswith("00000002-")


def test_no_memory_for_a_slot(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A save without memory fails alone; the next one succeeds when memory is available."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    model = Model()
    ckpt = restarted(model=model, every=2)
    for step in ckpt.steps(7):
        model.weight += 1
        if step == 0:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
        ckpt.wait()
        if step == 2:
            assert saved() == []
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert saved() == [4, 6, 7]
    assert "step 2 could not be saved" in caplog.text


def test_folder_deleted_while_training() -> None:
    """Saving must not recreate a deleted job dir; training itself continues."""
    model = Model()
    ckpt = restarted(model=model, every=2)
    with pytest.raises(SystemExit) as end:
        for step in ckpt.steps(9):
            model.weight += 1
            if step == 4:
                __import__("shutil").rmtree("checkpoints")
    assert (end.value.code, model.weight[0].item()) == (74, 9)
    assert not Path("checkpoints").exists()


def test_a_zombie_stops(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CLOUDGPU_OUTCOME", str(tmp_path / "outcome.json"))
    ckpt = restarted(model=Model(), every=2)
    other = "from cloudgpu.runtime import Checkpointer\nlist(Checkpointer(every=100).steps(20))"
    with pytest.raises(SystemExit) as end:
        for step in ckpt.steps(9):
            ckpt.wait()
            if step == 4:
                subprocess.run([sys.executable, "-c", other], check=True, timeout=120)
    assert (end.value.code, saved()) == (73, [2, 4, 20])
    assert json.loads((tmp_path / "outcome.json").read_bytes())["outcome"] == "fenced"
    soon(10, lambda: len(files("checkpoints")))  # and the fence; no files of the uncommitted save
    monkeypatch.setenv("CLOUDGPU_ATTEMPT", "1")
    with pytest.raises(CheckpointError, match="attempt 2 has taken over"):
        train(9)
    assert json.loads((tmp_path / "outcome.json").read_bytes())["outcome"] == "fenced"


def test_jobs_train_on_in_one_folder_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each job counts its own attempts; in a shared folder the number only increases."""
    for attempt, steps in (("1", 2), ("2", 4), ("1", 6)):
        monkeypatch.setenv("CLOUDGPU_ATTEMPT", attempt)
        assert train(steps, folder="run", every=1)[0].step == steps
    assert saved("run")[-1] == 6


def test_what_does_not_begin_is_not_listening(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a loop the agent must send a signal, as to any other program."""
    monkeypatch.setenv("CLOUDGPU_LISTENING", str(tmp_path / "listening"))
    ckpt = restarted(model=Model())
    assert (tmp_path / "listening").exists()
    ckpt.end(finished=False)
    assert not (tmp_path / "listening").exists()


def test_progress_that_cannot_be_told_is_no_reason_to_stop(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CLOUDGPU_PROGRESS", "/dev/null/progress.json")
    assert train(7)[0].step == 7
    assert caplog.text.count("progress cannot be reported to the agent") == 1


def test_within_a_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "a job").mkdir()  # created by submit; a deleted job dir is not recreated
    for name, value in {
        "JOB_DIR": (tmp_path / "a job").as_uri(),
        "ATTEMPT": "3",
        "NODE": "worker-0.1",
        "WORLD_SIZE": "1",
        "PROGRESS": str(tmp_path / "progress.json"),
        "CHECKPOINT_EVERY": "0.000001",
        "CHECKPOINT_KEEP": "2",
    }.items():
        monkeypatch.setenv(f"CLOUDGPU_{name}", value)
    train(9, every=None)
    soon([8, 9], lambda: saved("a job/checkpoints"))
    assert all("-0003-" in path.name for path in Path("a job/checkpoints").glob("0*"))
    progress = json.loads((tmp_path / "progress.json").read_bytes())
    assert (progress["step"], progress["saved_step"], progress["restored_step"]) == (9, 9, None)
    assert progress["step_seconds"] > 0 < progress["blocked_seconds"]
    train(9, every=None)
    progress = json.loads((tmp_path / "progress.json").read_bytes())
    assert (progress["step"], progress["saved_step"], progress["restored_step"]) == (9, 9, 9)
    assert progress["restore_seconds"] > 0
    assert write_output("plots/x.json", "{}") == (tmp_path / "a job/outputs/plots/x.json").as_uri()
    assert Path("a job/outputs/plots/x.json").read_text() == "{}"


def test_nodes_without_torch_distributed_train_each_for_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    monkeypatch.setenv("CLOUDGPU_JOB_DIR", (tmp_path / "job").as_uri())
    monkeypatch.setenv("CLOUDGPU_WORLD_SIZE", "2")
    for node, steps in (("worker-0.1", 3), ("worker-1.1", 4), ("worker-1.2", 6)):
        monkeypatch.setenv("CLOUDGPU_NODE", node)
        train(steps, every=3)
    assert saved("job/checkpoints/worker-0") == [3]
    assert saved("job/checkpoints/worker-1") == [3, 4, 6]


def test_torchrun_without_init_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(CheckpointError, match="init_process_group"):
        train(3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimizer": Model()}, "no state of optimizer"),
        ({"model": torch.nn.Linear(2, 2)}, "does not fit this program"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    train(5)
    with pytest.raises(CheckpointError, match=message):
        restarted(**{"model": Model(), **change})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every=0"),
        ({"every": -1.0}, "every=-1.0"),
        ({"every": "soon"}, "every='soon'"),
        ({"every": ""}, "every=''"),
        ({"every": True}, "every=True"),
        ({"keep": 0}, "at least one"),
        ({"model": 3}, "model= has no state_dict"),
        ({"folder": "ftp://host/x"}, "ftp://host/x"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        restarted(**options)


@pytest.mark.parametrize(("name", "value"), [("EVERY", "often"), ("KEEP", "few"), ("EVERY", "nan")])
def test_wrong_environment(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"CLOUDGPU_CHECKPOINT_{name}", value)
    with pytest.raises(CheckpointError):
        restarted()


def test_batches_without_a_loader() -> None:
    with pytest.raises(CheckpointError, match="use steps"):
        next(restarted().batches(epochs=1))
