"""How exit codes and outcome files decide the outcome: one agent and real programs."""

from __future__ import annotations

import json

import pytest

from cloudgpu.tests.standins.agents import World, until, world

__all__ = ["world"]


@pytest.mark.parametrize(
    ("code", "outcome", "final", "words"),
    [
        (70, "failed", True, "does not heal"),
        (73, "error", True, "a newer attempt has taken over"),
        (74, "failed", False, "its last checkpoint could not be written"),
        (75, "again", False, "it saved and asks to be run again"),
        (76, "again", False, "an older checkpoint exists"),
        (77, "again", False, "there is no checkpoint"),
    ],
)
def test_exit_codes(world: World, code: int, outcome: str, final: bool, words: str) -> None:
    world.job(f"exit {code}")
    result = world.run()
    assert (result.outcome, result.exit_code, result.final) == (outcome, code, final)
    assert words in result.reason


def test_143_is_75_where_the_job_says_so(world: World) -> None:
    world.job("exit 143", env={"CLOUDGPU_INTERRUPTED_EXIT": "143"})
    assert world.run().outcome == "again"


def test_143_is_a_failure_elsewhere(world: World) -> None:
    world.job("exit 143")
    assert world.run().outcome == "failed"


@pytest.mark.parametrize(
    ("word", "code", "outcome", "reason"),
    [
        ("interrupted", 1, "again", "rank 0: exit code 1: told to stop"),
        ("stale", 1, "again", "rank 0: exit code 1: told to stop"),
        ("user", 1, "failed", "rank 0: exit code 1: told to stop"),
        ("done", 1, "failed", "rank 0: exit code 1"),
        ("no such word", 1, "failed", "rank 0: exit code 1"),
        ("user", 75, "again", "rank 0: exit code 75: it saved and asks to be run again"),
    ],
)
def test_a_launcher_between_hides_the_code_but_not_the_outcome(
    world: World, word: str, code: int, outcome: str, reason: str
) -> None:
    said = json.dumps({"code": 75, "outcome": word, "reason": "told to stop"})
    world.job(f"printf %s '{said}' > \"$CLOUDGPU_OUTCOME\"; exit {code}")
    result = world.run()
    assert (result.outcome, result.exit_code, result.reason) == (outcome, code, reason)
    assert result.final is (word == "user" and code == 1)


@pytest.mark.parametrize("rubbish", ["", "{", "[]", "null", '{"outcome": []}', "\\0"])
def test_an_outcome_file_that_is_rubbish_says_nothing(world: World, rubbish: str) -> None:
    world.job(f"printf '%b' '{rubbish}' > \"$CLOUDGPU_OUTCOME\"; exit 1")
    assert world.run().outcome == "failed"


def test_a_users_error_goes_before_a_notice_but_not_before_a_stop(world: World) -> None:
    world.job("trap 'exit 70' TERM; echo up; while :; do sleep 0.1; done")
    agent = world.start()
    until(lambda: world.texts() == ["up"])
    world.notice(20)
    assert agent.wait(180) == 0
    assert (world.result().outcome, world.result().final) == ("failed", True)


def test_one_that_is_done_has_succeeded_though_only_a_signal_had_asked_it(world: World) -> None:
    said = json.dumps({"code": 0, "outcome": "done"})
    end = f"printf %s '{said}' > \"$CLOUDGPU_OUTCOME\"; exit 0"
    world.job(f"end() {{ {end}; }}; trap end TERM; echo up; while :; do sleep 0.1; done")
    agent = world.start()
    until(lambda: world.texts() == ["up"])
    world.stop(20)
    assert agent.wait(180) == 0
    assert world.result().outcome == "succeeded"
