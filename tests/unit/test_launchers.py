"""From job and node to processes, orders to endings, bytes to lines."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cloudgpu.protocol.jobdir import Address, JobRecord, NodeRecord, Outcome
from cloudgpu.runtime.launchers import (
    LauncherError,
    ProgramContext,
    choose_launcher,
    command_line,
    free_port,
    machine_environment,
    needs_addresses,
    own_host,
    processes,
    setup_process,
)
from cloudgpu.runtime.notices import Order, Orders, write_notice
from cloudgpu.runtime.processes.exit_verdict import Ending, judge
from cloudgpu.runtime.processes.program import Exit, LineSplitter, Process

MASTER = {"worker-0.1": Address("10.0.0.1", 20_123)}


def node(rank: int, gpus: int = 0) -> NodeRecord:
    return NodeRecord(f"worker-{rank}.1", "worker", rank, rank, gpus)


def place(job: JobRecord, *nodes: NodeRecord, rank: int = 0) -> ProgramContext:
    return ProgramContext(job, "file:///jobs/job-1", 2, nodes[rank], nodes, Path("/home/state"))


def job(**more: object) -> JobRecord:
    return JobRecord("job-1", "job", "train", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "gpus", "expected"),
    [
        ("auto", [0], "none"),
        ("auto", [1], "none"),
        ("auto", [2], "torchrun"),
        ("auto", [0, 0], "torchrun"),
        ("none", [8, 8], "none"),
        ("torchrun", [0], "torchrun"),
        ("mpi", [0], "mpi"),
    ],
)
def test_without_a_hint_auto_is_torchrun_from_two_processes_on(asked: str, gpus: list[int], expected: str) -> None:
    nodes = [node(rank, count) for rank, count in enumerate(gpus)]
    assert choose_launcher(job(launcher=asked), nodes, Path("/nowhere")).launcher == expected


@pytest.mark.parametrize(
    ("launcher", "roles", "expected"),
    [
        ("none", ["worker", "worker"], []),
        ("torchrun", ["worker"], []),
        ("torchrun", ["worker", "worker"], [0]),
        ("mpi", ["worker", "worker"], [0]),
        ("horovod", ["worker", "worker"], [0]),
        ("tensorflow", ["worker"], []),
        ("tensorflow", ["chief", "worker", "parameter_server", "evaluator"], [0, 1, 2]),
    ],
)
def test_whose_addresses_must_be_known(launcher: str, roles: list[str], expected: list[int]) -> None:
    nodes = [NodeRecord(f"{role}-0.1", role, 0, rank, 0) for rank, role in enumerate(roles)]
    assert [node.rank for node in needs_addresses(launcher, nodes)] == expected


@pytest.mark.parametrize("name", ["ray", "", "None"])
def test_unknown_launchers_are_told(name: str) -> None:
    with pytest.raises(LauncherError, match="only with: horovod, mpi, none, tensorflow, torchrun"):
        choose_launcher(job(launcher=name), [node(0)], Path())


def test_ranks_count_through_nodes_of_different_sizes() -> None:
    nodes = [node(0, 0), node(1, 2), node(2, 4)]
    rows = [
        [
            process.env[name]
            for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK")
        ]
        for rank in range(3)
        for process in processes("torchrun", place(job(), *nodes, rank=rank), {}, MASTER)
    ]
    assert rows == [
        ["0", "0", "7", "1", "0", "0"],
        ["1", "0", "7", "2", "1", "1"],
        ["2", "1", "7", "2", "1", "1"],
        ["3", "0", "7", "4", "2", "2"],
        ["4", "1", "7", "4", "2", "2"],
        ["5", "2", "7", "4", "2", "2"],
        ["6", "3", "7", "4", "2", "2"],
    ]


def test_torchrun_finds_rank_0_and_the_user_may_set_threads() -> None:
    (first, _) = processes("torchrun", place(job(), node(0, 2)), {}, MASTER)
    assert (first.env["MASTER_ADDR"], first.env["MASTER_PORT"]) == ("10.0.0.1", "20123")
    assert first.env["TORCHELASTIC_RUN_ID"] == "job-1-2"
    assert first.env["OMP_NUM_THREADS"] == "1"
    (first, _) = processes("torchrun", place(job(env={"OMP_NUM_THREADS": "4"}), node(0, 2)), {}, MASTER)
    assert first.env["OMP_NUM_THREADS"] == "4"


def test_none_is_one_process_without_torchs_variables() -> None:
    (only,) = processes("none", place(job(), node(0, 8), node(1, 8), rank=1), {"HOME": "/root"}, MASTER)
    assert only.rank == 1
    assert (only.env["CLOUDGPU_RANK"], only.env["CLOUDGPU_WORLD_SIZE"], only.env["HOME"]) == ("1", "2", "/root")
    assert not {"RANK", "LOCAL_RANK", "MASTER_ADDR"} & set(only.env)


def test_the_jobs_environment_goes_before_the_machines_and_cloudgpus_before_both() -> None:
    (only,) = processes(
        "none", place(job(env={"A": "job", "CLOUDGPU_NODE": "x"}), node(0)), {"A": "m", "B": "m"}, MASTER
    )
    assert (only.env["A"], only.env["B"], only.env["CLOUDGPU_NODE"]) == ("job", "m", "worker-0.1")


def test_no_setting_or_secret_of_cloudgpu_is_inherited() -> None:
    environ = {"HOME": "/root", "CLOUDGPU_DATABASE_URL": "secret", "CLOUDGPU_HOME": "/x", "CLOUDGPU_MACHINE": "outer"}
    assert machine_environment(environ, "t/worker-0.1") == {
        "HOME": "/root",
        "PYTHONUNBUFFERED": "1",
        "CLOUDGPU_MACHINE": "t/worker-0.1",
    }
    assert machine_environment({"PYTHONUNBUFFERED": ""}, "t")["PYTHONUNBUFFERED"] == ""


def test_setup() -> None:
    assert setup_process(place(job(), node(0)), {}) is None
    process = setup_process(place(job(setup="pip install x"), node(0)), {})
    assert process is not None
    assert list(process.command)[3:] == ["-c", "pip install x", "cloudgpu"]
    assert "CLOUDGPU_RANK" not in process.env


def test_arguments_never_become_shell_text() -> None:
    bash = ["bash", "-o", "pipefail", "-c"]
    assert command_line("train", ["; rm -rf /", "$(x)"]) == [*bash, 'train "$@"', "cloudgpu", "; rm -rf /", "$(x)"]
    assert command_line("train") == [*bash, "train", "cloudgpu"]
    assert command_line(["python", "train.py"], ["--x"]) == ["python", "train.py", "--x"]


def test_arguments_follow_the_last_word_or_go_where_the_text_says() -> None:
    assert command_line("cd x\ntrain\n", ["a"])[4] == 'cd x\ntrain "$@"'
    assert command_line('train "$@" | tee log', ["a"])[4] == 'train "$@" | tee log'


def test_a_machine_without_bash_uses_sh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command_line("train") == ["sh", "-c", "train", "cloudgpu"]


def test_programs_are_found_where_the_job_says() -> None:
    with_path = job(search_path="/venv/bin:/bin", setup="true", env={"LR": "1"})
    for process in (setup_process(place(with_path, node(0)), {"PATH": "/bin"}), *_none_of(with_path)):
        assert process is not None
        assert process.env["PATH"] == "/venv/bin:/bin"
    (own,) = _none_of(job(env={"PATH": "/mine"}, search_path="/venv/bin"))
    assert own.env["PATH"] == "/mine"
    (machines,) = _none_of(job())
    assert machines.env["PATH"] == "/bin"


def _none_of(record: JobRecord) -> list[Process]:
    return processes("none", place(record, node(0)), {"PATH": "/bin"}, MASTER)


def test_ports_and_hosts() -> None:
    assert 20_000 <= free_port() < 30_000
    assert own_host()
    chosen = {(rank, free_port(rank, 13)) for rank in range(13) for _ in range(50)}
    assert all(port % 13 == (20_000 + rank) % 13 for rank, port in chosen), "two nodes could choose the same"
    assert 20_000 <= free_port(4_321, 5_000) < 30_000


# --- orders and endings ---


def order(outcome: Outcome, deadline: float) -> Order:
    return Order(outcome, outcome, outcome, deadline)


def test_the_earliest_deadline_counts_and_the_users_stop_decides() -> None:
    woken: list[int] = []
    none = Orders(lambda: None)
    assert (none.next_to_expire, none.deciding) == (None, None)
    orders = Orders(lambda: woken.append(1))
    notice, stop, later = order("preempted", 5.0), order("stopped", 9.0), order("stopped", 3.0)
    for given in (notice, stop, later):
        orders.add(given)
    assert orders.next_to_expire is later
    assert orders.deciding is stop
    assert len(woken) == 3


STOP = order("stopped", 1.0)
PREEMPT = order("preempted", 1.0)


@pytest.mark.parametrize(
    ("codes", "given", "asked", "listening", "expected"),
    [
        ([0], None, False, False, Ending("succeeded", 0, "")),
        ([0, 0], PREEMPT, True, True, Ending("preempted", 0, "preempted")),
        ([0], STOP, False, False, Ending("succeeded", 0, "")),
        ([0], STOP, True, False, Ending("stopped", 0, "stopped")),
        ([75], PREEMPT, True, True, Ending("preempted", 75, "preempted")),
        ([-15], PREEMPT, True, False, Ending("preempted", -15, "preempted")),
        ([0, 3], PREEMPT, True, True, Ending("preempted", 3, "preempted")),
        ([], STOP, False, False, Ending("stopped", None, "stopped")),
        ([75], None, False, True, Ending("again", 75, "rank 0: exit code 75: it saved and asks to be run again")),
        ([0, 3, -9], None, False, False, Ending("failed", 3, "rank 1: exit code 3")),
        ([-11], None, False, False, Ending("failed", -11, "rank 0: SIGSEGV")),
        ([-40], None, False, False, Ending("failed", -40, "rank 0: signal 40")),
        ([0], None, True, False, Ending("succeeded", 0, "")),
    ],
)
def test_judge(codes: list[int], given: Order | None, asked: bool, listening: bool, expected: Ending) -> None:
    exits = [Exit(rank, code) for rank, code in enumerate(codes)]
    assert judge(exits, given, asked=asked, listening=listening) == expected


def test_the_notice_file_appears_at_once_as_a_whole(tmp_path: Path) -> None:
    import json

    begun = time.time()
    write_notice(tmp_path / "notice.json", Order("preempted", "preempt", "a notice", time.monotonic() + 30))
    value = json.loads((tmp_path / "notice.json").read_bytes())
    assert value["reason"] == "preempt"
    assert begun + 29 < value["deadline"] < time.time() + 31
    assert [path.name for path in tmp_path.iterdir()] == ["notice.json"]


# --- lines ---


def split(*pieces: bytes | float) -> list[tuple[str, bool]]:
    """Feed bytes; a number lets so many seconds pass."""
    out: list[tuple[str, bool]] = []
    splitter, now = LineSplitter(lambda text, partial: out.append((text, partial))), 0.0
    for piece in pieces:
        if isinstance(piece, bytes):
            splitter.feed(piece, now)
        else:
            now += piece
            splitter.tick(now)
    splitter.finish()
    return out


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([b"a\nb\n"], [("a", False), ("b", False)]),
        ([b"a", b"b\n", b"c"], [("ab", False), ("c", False)]),
        ([b"a\r\nb\r", b"\n"], [("a", False), ("b", False)]),
        ([b"\n\n"], [("", False), ("", False)]),
        ([], []),
        (["ü".encode()[:1], "ü".encode()[1:] + b"\n"], [("ü", False)]),
        (["ü".encode()[:1], 1.0, "ü".encode()[1:] + b"\n"], [("", True), ("ü", False)]),
        ([b"\xff\n"], [("\ufffd", False)]),
        ([b"name? ", 0.5, b"x\n"], [("name? x", False)]),
        ([b"name? ", 1.0, b"x\n"], [("name? ", True), ("x", False)]),
        ([b"1%\r2%\r3%\n"], [("3%", False)]),
        ([b"1%\r", b"2%\r", b"3%"], [("3%", False)]),
        ([b"1%\r2%", 6.0, b"\r3%", 6.0, b"\n"], [("2%", False), ("3%", False)]),
    ],
)
def test_lines(pieces: list[bytes | float], expected: list[tuple[str, bool]]) -> None:
    assert split(*pieces) == expected


def test_long_lines_come_in_parts_and_lose_nothing() -> None:
    text = "ü☃" * 100_000
    data = text.encode() + b"\nnext\n"
    got = split(*[data[at : at + 7_001] for at in range(0, len(data), 7_001)])
    assert "".join(part for part, _ in got[:-1]) == text
    assert [partial for _, partial in got[-3:]] == [True, False, False]
    assert max(len(part.encode()) for part, _ in got) <= (64 << 10) + 4
    assert got[-1] == ("next", False)
