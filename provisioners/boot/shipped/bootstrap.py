"""Bootstrap that a cloud machine runs on every boot: fetch the agent file from the job dir, run it, end the machine.

It runs without the package, from a folder with boot.json (BootRecord), common.py and the modules that boot.json names:
`bucket` (object store), `host` (kind of machine) and, on a fleet's machine, `group`. It uses only Python's standard
library. Errors are printed on the console and, if the bucket can be reached, written as the node's result into the job
dir.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bucket_s3 import Bucket
    from .common import HOME, TROUBLE, Hopeless, Refused, insist, say, write
    from .host_ec2 import Host
else:
    from common import HOME, TROUBLE, Hopeless, Refused, insist, say, write

LAST_PATIENCE_S = 60.0
AGENT_TRIES = 3  # a restarted agent resumes its node
# Exit codes of the agent (runtime/agent/agent.py). ENDED: the node has ended, with JOB_DIR_LOST because the job dir
# could not be used. AGAIN: the agent is to be restarted.
JOB_DIR_LOST = 4
ENDED = {0, 3, JOB_DIR_LOST, 5, 6}
AGAIN = 7
LEAVES, UNREACHABLE = 8, 9  # exit codes of runtime/fleet/member.py
LEAVE_S = 120.0
LEAVE_AGAIN_S = 15.0
REPLACED = 8  # limit of replacements of unusable machines in one job's group


class GoingDown(BaseException):
    """Raised by the SIGTERM handler if the machine goes down before the agent has started."""


class Machine:
    """This machine during one boot. State that outlives a boot is in files in HOME."""

    def __init__(self, record: dict[str, Any]) -> None:
        self.record = record
        self.host: Host = self.module("host").Host(record)
        self.bucket: Bucket = self.module("bucket").Bucket(record)
        self.node = str(record["node"])
        self.started = time.time()
        self.agent: subprocess.Popen[bytes] | None = None
        self.rebooting = HOME / "rebooting"
        """File that signals to the agent that the machine will boot again, so that the node has not ended."""
        self.going_down = False
        self.ending = False
        """The machine is being ended; SIGTERM must not interrupt that."""
        self.name = ""
        self.stays = False
        """The machine could not leave its group and is to stay in it."""

    def module(self, part: str) -> Any:
        """Return this machine's module for a part: `bucket`, `host` or `group`."""
        return importlib.import_module(self.record["modules"][part])

    def live(self) -> int:
        """Run the whole boot; return the agent's exit code, or 1 if the machine could not be used."""
        try:
            newer_python()
            code = self.run()
            if code == JOB_DIR_LOST and not self.going_down:
                self.explain()
        except GoingDown:
            return self.host.STOPPED
        except Exception as error:  # noqa: BLE001 - the machine must end after any error
            reason = str(error) if isinstance(error, Hopeless) else f"{type(error).__name__}: {error}"
            say(f"this machine cannot be used: {reason}")
            return self.give_up(reason)
        return code

    def give_up(self, reason: str) -> int:
        """Give up a machine that cannot be used: write the reason into the job dir, and step_down(). Return the exit
        code."""
        try:
            with contextlib.suppress(Hopeless):
                self.leave_word(f"the machine could not be used: {reason}")
            self.step_down(reason)
        except GoingDown:
            return self.host.STOPPED
        return 1

    def run(self) -> int:
        """Run the agent, restarting it after crashes, until it has ended; return its exit code. Raises Hopeless."""
        with contextlib.suppress(FileNotFoundError):
            self.rebooting.unlink()
        signal.signal(signal.SIGTERM, self.on_sigterm)
        left = self.limit_life()
        self.node = self.host.node()
        name = insist("this machine does not learn its name", self.host.name, self.host.PATIENCE_S)
        place = f"{self.node} in attempt {self.record['attempt']}" if self.node else "a machine"
        say(f"{name} is {place} of {self.record['job_dir']}")
        self.name = name
        file = HOME / "agent.pyz"
        if sha256_of(file) != self.record["agent_sha256"]:
            insist("the agent file cannot be fetched", lambda: self.fetch(file), self.host.PATIENCE_S)
        deaths = 0
        while deaths < AGENT_TRIES:
            code = self.run_agent(file, name, left)
            if code in ENDED or self.going_down:
                say(f"the agent has ended with exit code {code}")
                return code
            if code == AGAIN:
                say("the machine was to be restarted, and was not: the agent goes on")
                continue
            if code == LEAVES:
                if self.leave():
                    return 0
                if not self.stays and self.goes_down_in(LEAVE_AGAIN_S):
                    return code
                continue
            if code == UNREACHABLE:
                raise Hopeless(f"{self.record['job_dir']} could not be used for too long: {last_line()}")
            deaths += 1
            say(f"the agent has died with exit code {code}")
        raise Hopeless(f"the agent died {AGENT_TRIES} times, at last with exit code {code}: {last_line()}")

    def limit_life(self) -> float | None:
        """Schedule the unconditional end of the machine; return the remaining seconds, None if its lifetime is
        unlimited."""
        lifetime_s, path = self.record["lifetime_s"], HOME / "ends"
        if lifetime_s is None:
            return None
        if not path.exists():
            write(path, str(time.time() + lifetime_s).encode())
        left = min(lifetime_s, max(1.0, float(path.read_text()) - time.time()))
        self.host.limit_life(left)  # the agent has the same limit
        return float(left)

    def fetch(self, file: Path) -> None:
        """Download the agent file and check its hash. Raises OSError, Hopeless."""
        data = self.bucket.get(self.record["agent_key"])
        found = hashlib.sha256(data).hexdigest()
        if found != self.record["agent_sha256"]:
            raise Hopeless(
                f"the agent file {self.record['agent_key']} is not the one that was sent: its sha256 is {found}"
            )
        write(file, data)

    def run_agent(self, file: Path, name: str, left: float | None) -> int:
        """Run the agent until it ends; return its exit code. The machine's name is in the environment of its
        processes."""
        record = self.record
        line = [sys.executable, "-I", str(file), "--home", str(HOME), "--notices", record["notices"]]
        if record["fleet"]:
            line += ["--fleet-dir", record["job_dir"], "--member", name]
            line += ["--stays"] if self.stays else []
            line += ["--one-job"] if record["one_job"] else []
        else:
            line += ["--job-dir", record["job_dir"], "--job-sha256", record["job_sha256"]]
            line += ["--attempt", str(record["attempt"]), "--node", self.node]
        line += [] if left is None else ["--lifetime-s", str(left)]
        ends, address = record["capacity_block_end"], self.host.address()
        line += [] if ends is None else ["--capacity-block-end", str(ends)]
        line += [] if address is None else ["--host", address]
        environment = {**self.host.environment(), **os.environ, "CLOUDGPU_MACHINE": name}
        if secrets_pass := record.get("secrets_pass"):
            environment["CLOUDGPU_SECRETS_PASS"] = secrets_pass
        with (HOME / "agent.log").open("ab") as log:
            self.agent = subprocess.Popen(line, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return self.agent.wait()

    def leave(self) -> bool:
        """Leave the group for good; return whether that worked.

        A machine that fails to leave must not end itself, since the group would replace it. On a cluster it stays and
        takes jobs; in the group of a single job, which has no other work, it retries forever."""
        one_job = self.record["one_job"]
        try:
            insist("this machine cannot leave its group", self.leave_group, LEAVE_S)
        except Hopeless as error:
            say(f"{error}. It {'asks again' if one_job else 'stays, and does jobs, until the fleet is scaled down'}")
            self.stays = not one_job
            return False
        return True

    def step_down(self, reason: str) -> None:
        """Decide whether an unusable machine of one job's group is to be replaced.

        Normally it just ends and the group replaces it. After REPLACED failures, or if their number is unknown, it
        leaves the group instead, because no supervisor may be running to stop the replacements."""
        if not self.record["one_job"]:
            return
        try:
            replaced = self.count(reason)
        except TROUBLE as error:
            say(f"it is not known how many have failed: {error}")
            replaced = False
        if not replaced:
            self.leave()

    def count(self, reason: str) -> bool:
        """Record the failure; return whether it is among the first REPLACED. Simultaneous failures may count as one.
        Raises OSError."""
        for number in range(REPLACED):
            key = f"failed/{number}"
            try:
                self.bucket.get(key)
            except Refused as error:
                if error.status not in (403, 404):
                    raise
                # S3 answers 403 for missing objects unless the role may list the whole bucket; then only create() is
                # conclusive.
                if self.bucket.create(key, reason.encode()) or error.status == 404:
                    return True
        return False

    def goes_down_in(self, seconds: float) -> bool:
        time.sleep(seconds)
        return self.going_down

    def leave_group(self) -> None:
        self.module("group").leave(self.record)

    def on_sigterm(self, _number: int, _frame: object) -> None:
        """Handle SIGTERM: the machine is going down; `host` knows whether it will boot again."""
        self.going_down = True
        if self.host.comes_back():
            self.rebooting.touch()
        if self.agent is not None:
            self.agent.send_signal(signal.SIGTERM)
        elif not self.ending:
            raise GoingDown

    def node_key(self, name: str, node: str = "") -> str:
        return f"attempts/{self.record['attempt']:04d}/nodes/{node or self.node}/{name}"

    def has_ended(self, node: str) -> bool:
        """Return whether a node of the attempt has written its result; False if that cannot be read."""
        try:
            self.bucket.get(self.node_key("result.json", node))
        except TROUBLE:
            return False
        return True

    def leave_word(self, reason: str) -> None:
        """Write an error as the node's result, unless the agent has written one, so that the job does not wait for this
        machine."""
        if self.record["fleet"]:
            key, data = f"members/{self.name}/failed.json", json.dumps({"reason": reason, "time": time.time()}).encode()
            if self.name:
                insist("no word can be left", lambda: self.bucket.create(key, data), LAST_PATIENCE_S)
            return
        with contextlib.suppress(Hopeless):
            self.node = self.host.node()
        if not self.node:  # unknown
            return
        end = {"outcome": "error", "exit_code": None, "reason": reason, "started": self.started, "ended": time.time()}
        data = json.dumps(end).encode()
        insist("no word can be left", lambda: self.bucket.create(self.node_key("result.json"), data), LAST_PATIENCE_S)

    def explain(self) -> None:
        """Write the reason for which the agent gave up on the job dir, in case that can be reached again.

        This is not a result: the node is lost, and the job continues with another machine.
        """
        reason = f"{self.record['job_dir']} could not be used for too long: {last_line()}"
        say(reason)
        if self.record["fleet"]:
            return
        key = self.node_key("gave_up.json")
        data = json.dumps({"reason": reason, "time": time.time()}).encode()
        with contextlib.suppress(Hopeless):
            insist("no word can be left", lambda: self.bucket.create(key, data), LAST_PATIENCE_S)

    def exit_code(self, of_agent: int) -> int:
        """Return the exit code of the node's program. The agent's code 0 means only that the node's result is
        written."""
        if of_agent:
            return abs(of_agent)  # negative: killed by a signal

        def read() -> Any:  # parsed JSON
            return json.loads(self.bucket.get(self.node_key("result.json")))

        try:  # retried, because an exit code of failure makes Vertex end the whole job
            result = insist("the node's result cannot be read", read, LAST_PATIENCE_S)
        except Hopeless as error:
            say(str(error))
            return 1
        if result["outcome"] == "succeeded":
            return 0
        code = result.get("exit_code")
        return code if isinstance(code, int) and 0 < code < 256 else 1


def sha256_of(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def last_line() -> str:
    """Return the last line of the agent's log."""
    try:
        lines = (HOME / "agent.log").read_bytes()[-4_096:].decode(errors="replace").split("\n")
    except OSError:
        return "it left no log"
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


def newer_python() -> None:
    """Re-execute in Python 3.11 or newer if this one is older. Raises Hopeless if there is none."""
    if tuple(sys.version_info) >= (3, 11):
        return
    for minor in range(20, 10, -1):
        found = shutil.which(f"python3.{minor}")
        if found:
            os.execv(found, [found, *sys.argv])  # noqa: S606
    raise Hopeless(f"the image has Python {sys.version.split()[0]}, and none of 3.11 or newer: choose another image")


def main() -> None:
    """Run the bootstrap. Exit code 1 means that the machine may stay up: systemd then ends it (service.py)."""
    machine = Machine(json.loads((HOME / "boot.json").read_text()))
    code = machine.live()
    machine.ending = True
    ends = machine.host.end(machine.going_down, lambda: machine.exit_code(code), machine.has_ended)
    sys.exit(0 if ends else 1)


if __name__ == "__main__":
    main()
