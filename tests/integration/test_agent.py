"""Tests of real agent processes with job dirs in folders whose names need quoting."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from cloudgpu.protocol.jobdir import JOB_KEY, AttemptRecord, Heartbeat, JobRecord, attempt_key, node_key
from cloudgpu.runtime.agent import agent as agent_module
from cloudgpu.tests.standins.agents import World, until, world
from cloudgpu.tests.standins.processes import stopped

__all__ = ["world"]

# Polls for a notice like the Checkpointer does, prints its reason instead of saving, and exits with code 75.
LISTENER = """
import json, os, sys, time
open(os.environ["CLOUDGPU_LISTENING"], "w").close()
print("listening", flush=True)
while not os.path.exists(os.environ["CLOUDGPU_NOTICE"]):
    time.sleep(0.02)
print(json.load(open(os.environ["CLOUDGPU_NOTICE"]))["reason"], flush=True)
sys.exit(75)
"""

# --- running ---


def test_a_program_runs_in_its_code_with_arguments_as_written(world: World) -> None:
    world.job(
        'python main.py "$HOME_OF_X"',
        args=["a b", "$HOME", "'; echo no", ""],
        env={"HOME_OF_X": "x; y", "LR": "0.01"},
        code={"main.py": "import sys, os, helper; print(sys.argv[1:]); print(os.environ['LR'])", "helper.py": ""},
        setup="echo setting up; echo ready > made-by-setup",
    )
    result = world.run()
    assert (result.outcome, result.exit_code, result.reason) == ("succeeded", 0, "")
    assert result.started <= result.ended
    assert world.texts() == ["setting up", "['x; y', 'a b', '$HOME', \"'; echo no\", '']", "0.01"]
    assert (world.home() / "code" / "made-by-setup").exists()
    assert [line.rank for line in world.lines() if line.stream == "stdout"] == [None, 0, 0]


def test_a_list_is_executed_as_it_is(world: World) -> None:
    world.job(["printf", "%s|", "$HOME", "a;b"], args=["c d"])
    world.run()
    assert world.texts() == ["$HOME|a;b|c d|"]


def test_environment(world: World) -> None:
    world.job("env -0 | tr '\\n\\0' ' \\n'", env={"LR": "1", "PATH_X": "é"}, checkpoint_every=90)
    world.run()
    env = dict(text.split("=", 1) for text in world.texts() if "=" in text)
    met = json.loads(env.pop("CLOUDGPU_INTERRUPTIONS"))
    assert (met["markets"]["spot"][1], met["cost"]) == (0, None)
    assert 0 < met["markets"]["spot"][0] < 600, "seconds since the node was claimed"
    assert {name: env[name] for name in env if name.startswith("CLOUDGPU_")} == {
        "CLOUDGPU_MACHINE": f"{world.token}/0",
        "CLOUDGPU_JOB_ID": "job-1",
        "CLOUDGPU_JOB_DIR": world.dir.url,
        "CLOUDGPU_ATTEMPT": "1",
        "CLOUDGPU_GENERATION": "1",
        "CLOUDGPU_NODES": "1",
        "CLOUDGPU_NODE": "worker-0.1",
        "CLOUDGPU_ROLE": "worker",
        "CLOUDGPU_RANK": "0",
        "CLOUDGPU_WORLD_SIZE": "1",
        "CLOUDGPU_NOTICE": str(world.home() / "state" / "notice.json"),
        "CLOUDGPU_LISTENING": str(world.home() / "state" / "listening"),
        "CLOUDGPU_PROGRESS": str(world.home() / "state" / "progress.json"),
        "CLOUDGPU_WRITER": str(world.home() / "state" / "writer.sock"),
        "CLOUDGPU_MARKET": "spot",
        "CLOUDGPU_OUTCOME": str(world.home() / "state" / "outcome-0.json"),
        "CLOUDGPU_CHECKPOINT_EVERY": "90",
        "CLOUDGPU_CHECKPOINT_KEEP": "3",
        "CLOUDGPU_CHECKPOINT_ON_DAMAGE": "stop",
    }
    assert (env["LR"], env["PATH_X"], env["PYTHONUNBUFFERED"]) == ("1", "é", "1")
    assert "RANK" not in env
    assert "secret" not in "".join(env.values())


@pytest.mark.parametrize(
    ("run", "code", "reason"),
    [
        ("exit 3", 3, "rank 0: exit code 3"),
        ("kill -9 $$", -9, "rank 0: SIGKILL"),
        ("kill -SEGV $$", -11, "rank 0: SIGSEGV"),
        (["no-such-program"], 127, "rank 0: exit code 127"),
        (["/etc/passwd"], 126, "rank 0: exit code 126"),
    ],
)
def test_failures(world: World, run: str | list[str], code: int, reason: str) -> None:
    world.job(run)
    result = world.run()
    assert (result.outcome, result.exit_code) == ("failed", code)
    assert result.reason.partition(": ")[2].partition(": ")[0] == reason.partition(": ")[2]
    assert [line.text for line in world.lines() if line.stream == "agent"] == [f"failed: {result.reason}"]


def test_what_no_program_can_be_given(world: World) -> None:
    world.job(["printf", "a\0b"])
    result = world.run()
    assert (result.outcome, result.exit_code) == ("error", None)
    assert result.reason == "the program cannot be started: embedded null byte"


def test_setup_that_fails(world: World) -> None:
    world.job("echo never", setup="echo trying; exit 4")
    result = world.run()
    assert (result.outcome, result.exit_code, result.reason) == ("failed", None, "setup failed: exit code 4")
    assert world.texts() == ["trying"]


def test_every_gpu_gets_a_process_and_all_nodes_find_rank_0(world: World) -> None:
    names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE NODE_RANK MASTER_ADDR CLOUDGPU_RANK CLOUDGPU_WORLD_SIZE"
    world.job(
        f'for n in {names} MASTER_PORT TORCHELASTIC_RUN_ID; do printf "%s " "${{!n}}"; done; echo', nodes=2, gpus=2
    )
    both = [world.start(0), world.start(1)]
    assert [agent.wait(180) for agent in both] == [0, 0]
    rows = sorted(line.text.split() for line in world.lines() if line.stream == "stdout")
    assert [row[:8] for row in rows] == [
        [str(rank), str(rank % 2), "4", "2", str(rank // 2), "127.0.0.1", str(rank), "4"] for rank in range(4)
    ]
    assert len({tuple(row[8:]) for row in rows}) == 1, "one port, one run id"
    assert {line.rank for line in world.lines(node="worker-1") if line.stream == "stdout"} == {2, 3}


def test_a_node_that_comes_when_the_others_have_succeeded_does_its_part(world: World) -> None:
    world.job('echo "part $RANK"; exit $((RANK * 3))', nodes=2)
    assert world.start(0).wait(180) == 0
    world.start(1).wait(180)
    assert sorted(line.text for line in world.lines() if line.stream == "stdout") == ["part 0", "part 1"]
    assert (world.result().outcome, world.result(1).outcome) == ("succeeded", "failed")
    assert world.result(1).reason == "rank 1: exit code 3"


def test_a_node_that_comes_when_another_has_failed_begins_nothing(world: World) -> None:
    world.job('echo "part $RANK"; exit 3', nodes=2)
    world.start(0).wait(180)
    world.start(1).wait(180)
    assert [line.text for line in world.lines() if line.stream == "stdout"] == ["part 0"]


def test_one_rank_failing_ends_the_others_of_the_node(world: World) -> None:
    fails = "until [ -e listens ]; do sleep 0.1; done; exit 9"
    listens = 'trap "echo asked; exit 0" TERM; touch listens; sleep 600 & wait'
    world.job(f'if [ "$LOCAL_RANK" = 1 ]; then {fails}; fi; {listens}', gpus=2)
    result = world.run()
    assert (result.outcome, result.exit_code, result.reason) == ("failed", 9, "rank 1: exit code 9")
    assert "asked" in world.texts()


def test_a_launcher_of_another_version(world: World) -> None:
    world.job("true", launcher="of-tomorrow")
    result = world.run()
    assert result.outcome == "error"
    assert "cannot launch with of-tomorrow, only with: horovod, mpi, none" in result.reason


# --- the log ---


def test_a_flood_arrives_whole_and_in_order(world: World) -> None:
    world.job("seq 200000; printf last")
    world.run()
    assert world.texts() == [*map(str, range(1, 200_001)), "last"]
    assert len(world.dir.list("attempts/0001/nodes/worker-0.1/log")) < 20


def test_odd_output(world: World) -> None:
    program = r"""
import os, sys, time
os.write(1, b"binary \xff\x00 end\n" + "ünï☃\r\n".encode())
os.write(1, b"y" * 200_000 + b"\n")
os.write(1, b"\r 10%\r 20%\r 30%\n")
os.write(2, b"to stderr\n")
os.write(1, b"prompt> ")
while not os.path.exists(sys.argv[1]): time.sleep(0.02)
os.write(1, b"answer\n\nlast without an end")
"""
    seen = world.folder / "seen"
    world.job(["python", "-c", program, str(seen)])
    agent = world.start()
    until(lambda: "prompt> " in world.texts())
    seen.touch()
    assert agent.wait(180) == agent_module.DONE
    lines = world.lines()
    assert [line.text for line in lines if line.stream == "stderr"] == ["to stderr"]
    out = [(line.text, line.partial) for line in lines if line.stream == "stdout"]
    assert out[:2] == [("binary \ufffd\x00 end", False), ("ünï☃", False)]
    long = [text for text, _ in out if text.startswith("y")]
    assert len("".join(long)) == 200_000
    assert out[2 + len(long) :] == [
        (" 30%", False),
        ("prompt> ", True),
        ("answer", False),
        ("", False),
        ("last without an end", False),
    ]


def test_lines_arrive_while_the_program_runs(world: World) -> None:
    world.job("echo now; sleep 600")
    world.start()
    until(lambda: world.texts() == ["now"])
    (line,) = world.lines()
    assert abs(time.time() - line.time) < 200, "it came long before the program's end"
    assert not world.has_result()


# --- heartbeats and progress ---


def test_heartbeats_carry_the_progress(world: World) -> None:
    world.job('sleep 1.5; echo \'{"step": 7}\' > "$CLOUDGPU_PROGRESS"; sleep 600', setup="true")
    world.start()
    key = node_key(1, "worker-0.1", "heartbeat.json")
    seen: list[Heartbeat] = []

    def beats() -> bool:
        data = world.dir.find(key)
        if data is not None:
            seen.append(Heartbeat.from_bytes(data))
        return bool(seen) and seen[-1].progress == {"step": 7}

    until(beats)
    numbers = [beat.sequence for beat in seen]
    assert numbers == sorted(numbers)
    assert seen[-1].phase == "running"
    world.stop(0.1)
    until(world.has_result)
    assert world.result().progress == {"step": 7}


# --- notices, stops, signals ---


def test_a_notice_reaches_a_program_that_listens(world: World) -> None:
    world.job("python main.py", code={"main.py": LISTENER})
    agent = world.start()
    until(lambda: world.texts() == ["listening"])
    world.notice(120)
    assert agent.wait(180) == 0
    assert world.texts() == ["listening", "preempt"]
    result = world.result()
    assert (result.outcome, result.exit_code) == ("preempted", 75)
    assert result.reason == "notice from test: preempt"


def test_a_program_that_does_not_listen_gets_a_signal_and_the_time(world: World) -> None:
    """A shell that runs the program dies of SIGTERM at once; the program still gets the time until the deadline."""
    program = (
        "import signal, time, sys\n"
        "def end(*_):\n time.sleep(1); print('saved', flush=True); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end); print('up', flush=True); time.sleep(600)"
    )
    world.job("true\npython main.py\ntrue\n", code={"main.py": program})
    agent = world.start()
    until(lambda: world.texts() == ["up"])
    world.stop(120)
    assert agent.wait(180) == 0
    assert world.texts() == ["up", "saved"]
    assert world.result().outcome == "stopped"
    assert world.result().reason == "cancelled"


def test_a_deaf_program_is_killed_at_the_deadline_with_all_it_started(world: World) -> None:
    world.job("trap '' TERM; (trap '' TERM; setsid sleep 300) & echo up; while :; do sleep 1; done")
    agent = world.start()
    until(lambda: world.texts() == ["up"])
    begun = time.monotonic()
    world.stop(1.5)
    assert agent.wait(180) == 0
    assert time.monotonic() - begun > 1.0
    assert world.processes() == []
    result = world.result()
    assert (result.outcome, result.exit_code) == ("stopped", -9)


def test_the_machine_vanishes_at_a_notices_deadline(world: World) -> None:
    world.job("trap '' TERM; echo up; while :; do sleep 0.1; done")
    agent = world.start()
    until(lambda: world.texts() == ["up"])
    world.notice(1)
    assert agent.wait(180) == agent_module.VANISHED
    assert not world.has_result()
    assert world.processes() == []


def test_a_deadline_may_be_tightened(world: World) -> None:
    world.job("trap 'echo asked' TERM; echo up; while :; do sleep 0.1; done")
    agent = world.start()
    until(lambda: world.texts() == ["up"])
    world.stop(300)
    until(lambda: "asked" in world.texts())
    world.stop(0.5, "cost")
    assert agent.wait(180) == 0
    assert world.texts().count("asked") == 1, "a second signal would say: now"
    assert world.result().reason == "cancelled", "what came first is what ended it"


@pytest.mark.parametrize(("report", "outcome"), [(True, "succeeded"), (False, "stopped")])
def test_success_counts_after_a_stop_if_the_program_reports_it(world: World, report: bool, outcome: str) -> None:
    done = """open(os.environ["CLOUDGPU_OUTCOME"], "w").write('{"outcome": "done"}')\n"""
    program = LISTENER.replace("sys.exit(75)", (done if report else "") + "sys.exit(0)")
    world.job("python main.py", code={"main.py": program})
    agent = world.start()
    until(lambda: world.texts() == ["listening"])
    world.stop(120)
    assert agent.wait(180) == 0
    assert world.result().outcome == outcome


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_agent_is_a_machine_that_shuts_down(world: World, number: signal.Signals) -> None:
    world.job("python main.py", code={"main.py": LISTENER})
    agent = world.start()
    until(lambda: world.texts() == ["listening"])
    agent.send_signal(number)
    assert agent.wait(180) == 0
    assert world.texts()[-1] == "terminate"
    assert (world.result().outcome, world.result().reason) == ("preempted", "the machine is shut down")


def test_two_signals_mean_now(world: World) -> None:
    world.job("trap 'echo asked' TERM; echo up; while :; do sleep 0.1; done")
    agent = world.start()
    until(lambda: world.texts() == ["up"])
    begun = time.monotonic()
    agent.terminate()
    until(lambda: "asked" in world.texts())  # earlier, two pending SIGTERMs may be merged into one
    agent.terminate()
    assert agent.wait(180) == 0
    assert time.monotonic() - begun < 25, "the grace that the first one gives"
    assert world.result().outcome == "preempted"


def test_a_stop_during_the_setup(world: World) -> None:
    world.job("echo never", setup="echo setting up; sleep 600")
    agent = world.start()
    until(lambda: world.texts() == ["setting up"])
    world.stop(120)
    assert agent.wait(180) == 0
    assert (world.result().outcome, world.result().exit_code) == ("stopped", None)
    assert world.texts() == ["setting up"]


def test_a_stop_that_was_there_before(world: World) -> None:
    world.job("sleep 600")
    world.stop(2)
    assert world.run().outcome == "stopped"


def test_lifetime(world: World) -> None:
    world.job("sleep 600")
    result = world.run("--lifetime-s", "1")
    assert (result.outcome, result.reason) == ("stopped", "the machine's lifetime ends")


def test_invalid_stop_records_are_logged_and_ignored(world: World) -> None:
    world.job("sleep 1.5")
    for data in (b"{", b'{"reason":"cancel","deadline":null}', b'{"reason":"cancel","deadline":NaN}'):
        world.dir.put(attempt_key(1, "stop.json"), data)
    assert world.run().outcome == "succeeded"
    assert "stop.json is ignored" in world.texts("agent")[0]


# --- no process is left behind, no node runs twice ---


def test_what_a_program_leaves_behind_is_killed(world: World) -> None:
    daemon = "import os, time\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0:\n  time.sleep(900)\n os._exit(0)\n"
    world.job(
        ["python", "-c", f"import subprocess\n{daemon}\nsubprocess.Popen(['env', '-i', 'sleep', '301'])\nprint('done')"]
    )
    assert world.run().outcome == "succeeded", "a daemon that holds the output open is not waited for"
    assert world.processes() == []
    assert not [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "301"]], (
        "unmarked ones too"
    )


@pytest.mark.parametrize("delay_s", [0.0, 0.08, 0.15, 0.25, 0.6])
def test_killing_the_agent_at_any_moment_leaves_nothing(world: World, delay_s: float) -> None:
    world.job("true\npython -c 'import time; print(1, flush=True); time.sleep(300)'\ntrue", setup="true")
    agent = world.start()
    time.sleep(delay_s)
    agent.kill()
    agent.wait()
    until(lambda: world.processes() == [])
    assert not world.has_result()


def test_killing_the_guard_is_the_programs_death(world: World) -> None:
    world.job("true\nsleep 300\ntrue")
    agent = world.start()
    until(lambda: len(world.processes()) == 4)  # agent, guard, shell, sleep
    next(p for p in world.processes() if "orphan_guard.py" in " ".join(p.cmdline())).kill()
    assert agent.wait(180) == 0
    assert (world.result().outcome, world.result().exit_code) == ("failed", -9)
    assert world.processes() == []


def test_a_second_agent_touches_nothing(world: World) -> None:
    world.job("echo up; sleep 2")
    first = world.start()
    until(lambda: world.texts() == ["up"])
    before = {path: path.stat().st_mtime for path in (world.home() / "code").rglob("*")}
    second = world.start(home=world.folder / "homes" / "other")
    assert second.wait(180) == agent_module.CLAIMED
    assert first.wait(180) == 0
    assert world.texts() == ["up"]
    assert world.result().outcome == "succeeded"
    assert before == {path: path.stat().st_mtime for path in (world.home() / "code").rglob("*")}
    assert "is run by another agent" in (world.folder / "homes" / "other" / "agent.log").read_text()


# --- damaged, missing and full job dirs ---


def test_another_job_json_is_refused(world: World) -> None:
    world.job("echo never")
    world.dir.put(JOB_KEY, JobRecord("job-1", "job", "echo evil").to_bytes())
    result = world.run()
    assert result.outcome == "error"
    assert "sha256 differs" in result.reason
    assert world.texts() == []


def break_attempt(world: World) -> None:
    world.dir.put(attempt_key(1), b'{"attempt": 1, "offer": {}, "nodes": [{"x": 1}]}')


def no_attempt(world: World) -> None:
    world.dir.delete(attempt_key(1))


def other_nodes(world: World) -> None:
    world.dir.put(attempt_key(1), AttemptRecord(1, {}, []).to_bytes())


def no_code(world: World) -> None:
    world.dir.delete(world.dir.list("code")[0])


def damaged_code(world: World) -> None:
    world.dir.put(world.dir.list("code")[0], gzip.compress(b"something else"))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (break_attempt, "no usable description of attempt 1"),
        (no_attempt, "no usable description of attempt 1"),
        (other_nodes, "worker-0.1 is no node of attempt 1"),
        (no_code, "the code archive is missing"),
        (damaged_code, "the code archive is damaged"),
    ],
)
def test_an_unusable_job_dir_is_a_clear_error(world: World, damage: Callable[[World], None], words: str) -> None:
    world.job("echo never", code={"x": ""})
    damage(world)
    result = world.run()
    assert (result.outcome, result.exit_code) == ("error", None)
    assert words in result.reason


def test_no_job_dir_at_all(world: World) -> None:
    assert world.start(0, "--patience-s", "0.5").wait(180) == agent_module.JOB_DIR_LOST
    assert "there is no such object" in world.agent_log()
    assert not (world.folder / "job dir").exists()


def test_a_deleted_job_dir_ends_the_program_and_is_not_made_again(world: World) -> None:
    world.job("echo up; sleep 300")
    agent = world.start()
    until(lambda: world.texts() == ["up"])
    (world.folder / "job dir").rename(world.folder / "gone")  # an atomic `rm -r`
    assert agent.wait(180) == agent_module.JOB_DIR_LOST
    assert "deleted" in world.agent_log()
    assert world.processes() == []
    assert not (world.folder / "job dir").exists()


def test_a_job_dir_deleted_piece_by_piece(world: World) -> None:
    world.job("while :; do echo line; sleep 0.01; done")
    agent = world.start()
    until(world.texts)
    shutil.rmtree(world.folder / "job dir", ignore_errors=True)
    assert agent.wait(180) == agent_module.JOB_DIR_LOST
    assert world.processes() == []


def test_a_job_dir_that_fails_for_a_while_loses_nothing(world: World) -> None:
    world.job("for i in $(seq 30); do echo $i; sleep 0.1; done")
    agent = world.start(0, "--patience-s", "30")
    until(world.texts)
    blocked = world.folder / "job dir" / "attempts" / "0001" / "nodes" / "worker-0.1"
    with stopped(agent):  # a running agent might recreate the folder between the two calls
        blocked.rename(blocked.with_name("away"))
        blocked.write_text("a file where the folder was")
    time.sleep(1.5)
    assert agent.poll() is None, "the training goes on"
    with stopped(agent):
        blocked.unlink()
        blocked.with_name("away").rename(blocked)
    assert agent.wait(180) == 0
    assert world.texts() == [str(number) for number in range(1, 31)]
    assert world.result().outcome == "succeeded"


def test_a_job_dir_that_cannot_be_written_for_long(world: World) -> None:
    world.job("trap 'echo asked > asked; exit' TERM; while :; do sleep 0.1; done")
    agent = world.start(0, "--patience-s", "1.5")
    until(lambda: world.dir.exists(node_key(1, "worker-0.1", "heartbeat.json")))
    blocked = world.folder / "job dir" / "attempts" / "0001" / "nodes" / "worker-0.1"
    with stopped(agent):
        shutil.rmtree(blocked)
        blocked.write_text("a file where the folder was")
    assert agent.wait(180) == agent_module.JOB_DIR_LOST
    assert (world.home() / "code" / "asked").exists()
    assert world.processes() == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small disk"
    folder.mkdir()
    mounted = (
        os.geteuid() == 0
        and subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=512k", "none", str(folder)], capture_output=True, check=False
        ).returncode
        == 0
    )
    if not mounted:
        pytest.skip("a small disk needs the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_the_job_dirs_disk_is_full(small_disk: Path) -> None:
    world = World(small_disk)
    world.job("echo up; sleep 300")
    home = small_disk.parent / "home"
    agent = world.start(0, "--patience-s", "1.5", home=home)
    until(world.texts)
    with pytest.raises(OSError, match="No space left"), (small_disk / "fill").open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 512)
    assert agent.wait(180) == agent_module.JOB_DIR_LOST
    assert "No space left" in (home / "agent.log").read_text()
    assert world.processes() == []


def test_the_machines_disk_is_full(world: World, small_disk: Path) -> None:
    text = "".join(hashlib.sha256(str(number).encode()).hexdigest() for number in range(20_000))
    world.job("true", code={"big": text})
    agent = world.start(home=small_disk)
    assert agent.wait(180) == 0
    assert world.result().outcome == "error"
    assert "No space left" in world.result().reason


def test_a_program_that_fills_the_machines_disk(world: World, small_disk: Path) -> None:
    world.job("cat /dev/zero > zeros; echo full; trap 'exit 7' TERM; while :; do sleep 0.1; done")
    agent = world.start(home=small_disk)
    until(lambda: world.texts() == ["full"])
    world.stop(120)
    assert agent.wait(180) == 0
    assert (world.result().outcome, world.result().exit_code) == ("stopped", 7)


def test_result_is_json_for_everyone(world: World) -> None:
    world.job("exit 0")
    world.run()
    value = json.loads(world.dir.get(node_key(1, "worker-0.1", "result.json")))
    names = {"outcome", "exit_code", "reason", "started", "ended", "progress", "final", "timeline"}
    assert set(value) == names | {"missing_outputs"}
