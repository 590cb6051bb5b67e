"""Whose lock it is, and which may be broken: those of engines of ours that are dead, and no others."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cloudgpu.infra.engine.locks import EngineRegistry, Lock, locks_in, verdict_of

# As pkg/backend/diy/lock.go of Pulumi 3.2xx writes it.
ERROR = """error: the stack is currently locked by {n} lock(s). Either wait for the other process(es) to end or \
delete the lock file with `pulumi cancel`.
  file:///state/.pulumi/locks/organization/cloudgpu/infra-aws-us-east-1/1.json: created by me@here (pid 11) at \
2026-11-22T06:00:00Z
  s3://b/.pulumi/locks/organization/cloudgpu/x/2.json?region=eu: created by DOMAIN\\some one@there (pid 22) at \
2026-11-22T07:00:00+01:00"""
HERE = socket.gethostname()


def lock(pid: int, host: str = HERE) -> Lock:
    return Lock("place", "me", host, pid, "2026-11-22T06:00:00Z")


def test_locks_are_read_from_the_engines_own_words() -> None:
    assert locks_in(ERROR.format(n=2)) == [
        Lock(
            "file:///state/.pulumi/locks/organization/cloudgpu/infra-aws-us-east-1/1.json",
            "me",
            "here",
            11,
            "2026-11-22T06:00:00Z",
        ),
        Lock(
            "s3://b/.pulumi/locks/organization/cloudgpu/x/2.json?region=eu",
            "DOMAIN\\some one",
            "there",
            22,
            "2026-11-22T07:00:00+01:00",
        ),
    ]


@pytest.mark.parametrize("text", ["", "error: something else", ERROR.format(n=3)])
def test_where_not_every_lock_is_read_none_is_judged(text: str) -> None:
    assert locks_in(text) is None


@pytest.fixture
def engines(tmp_path: Path) -> EngineRegistry:
    return EngineRegistry(tmp_path / "engines")


@pytest.fixture
def dead(engines: EngineRegistry) -> int:
    """Process id of an engine of ours that was killed."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        engines.started(process.pid)
        process.kill()
    return process.pid


def test_a_dead_engine_of_ours(engines: EngineRegistry, dead: int) -> None:
    assert engines.judge(lock(dead)) == "dead"


def test_a_living_engine_of_ours(engines: EngineRegistry) -> None:
    engines.started(os.getpid())
    assert engines.judge(lock(os.getpid())) == "alive"


def test_another_process_with_the_number_of_a_dead_engine(engines: EngineRegistry, tmp_path: Path) -> None:
    engines.started(os.getpid())
    path = tmp_path / "engines" / str(os.getpid())
    path.write_text(json.dumps({**json.loads(path.read_text()), "created": 1.0}))
    assert engines.judge(lock(os.getpid())) == "dead"


def test_nobody_else_s_lock_is_ours(engines: EngineRegistry, dead: int) -> None:
    assert engines.judge(lock(dead, host="elsewhere")) == "foreign"
    assert engines.judge(lock(dead + 1)) == "foreign"
    engines.ended(dead)
    assert engines.judge(lock(dead)) == "foreign"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"host": 1}'])
def test_a_damaged_note_is_nobodys(engines: EngineRegistry, dead: int, tmp_path: Path, text: str) -> None:
    (tmp_path / "engines" / str(dead)).write_text(text)
    assert engines.judge(lock(dead)) == "foreign"


def test_locks_are_broken_together_only(engines: EngineRegistry, dead: int) -> None:
    engines.started(os.getpid())
    assert verdict_of([lock(dead)], engines) == "dead"
    assert verdict_of([lock(dead), lock(os.getpid())], engines) == "alive"
    assert verdict_of([lock(dead), lock(os.getpid()), lock(1, "elsewhere")], engines) == "foreign"
    assert verdict_of([], engines) == "foreign"
