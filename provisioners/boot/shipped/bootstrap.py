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
    from .common import HOME, NETWORK_ERRORS, ErrorResponse, PermanentError, log, retry, write
    from .host_ec2 import Host
else:
    from common import HOME, NETWORK_ERRORS, ErrorResponse, PermanentError, log, retry, write

LAST_RETRY_TIMEOUT_S = 60.0
AGENT_TRIES = 3  # a restarted agent resumes its node
# Exit codes of the agent (runtime/agent/agent.py). ENDED: the node has ended, with JOB_DIR_LOST because the job dir
# could not be used. EXIT_RESTART: the agent is to be restarted.
JOB_DIR_LOST = 4
ENDED = {0, 3, JOB_DIR_LOST, 5, 6}
EXIT_RESTART = 7
EXIT_LEAVES, EXIT_UNREACHABLE = 8, 9  # exit codes of runtime/fleet/member.py
LEAVE_S = 120.0
LEAVE_AGAIN_S = 15.0
MAX_REPLACEMENTS = 8  # limit of replacements of unusable machines in one job's group


class GoingDown(BaseException):
    """The machine goes down before the agent has started; raised by the SIGTERM handler."""


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
        """True if the machine is being ended, which SIGTERM must not interrupt."""
        self.name = ""
        self.stays = False
        """True if the machine could not leave its group and is to stay in it."""

    def module(self, part: str) -> Any:
        """Return this machine's module for a part: `bucket`, `host` or `group`."""
        return importlib.import_module(self.record["modules"][part])

    def boot(self) -> int:
        """Run the whole boot; return the agent's exit code, or 1 if the machine could not be used."""
        try:
            reexec_in_newer_python()
            code = self.run()
            if code == JOB_DIR_LOST and not self.going_down:
                self.write_job_dir_error()
        except GoingDown:
            return self.host.STOPPED
        except Exception as error:  # noqa: BLE001 - the machine must end after any error
            reason = str(error) if isinstance(error, PermanentError) else f"{type(error).__name__}: {error}"
            log(f"this machine cannot be used: {reason}")
            return self.give_up(reason)
        return code

    def give_up(self, reason: str) -> int:
        """Give up a machine that cannot be used: write the reason into the job dir, and leave_or_be_replaced().

        Returns the exit code."""
        try:
            with contextlib.suppress(PermanentError):
                self.write_failure(f"the machine could not be used: {reason}")
            self.leave_or_be_replaced(reason)
        except GoingDown:
            return self.host.STOPPED
        return 1

    def run(self) -> int:
        """Run the agent, restarting it after crashes, until it has ended; return its exit code.

        Raises PermanentError."""
        with contextlib.suppress(FileNotFoundError):
            self.rebooting.unlink()
        signal.signal(signal.SIGTERM, self.on_sigterm)
        left = self.schedule_shutdown()
        self.node = self.host.node()
        name = retry("this machine does not learn its name", self.host.name, self.host.RETRY_TIMEOUT_S)
        place = f"{self.node} in attempt {self.record['attempt']}" if self.node else "a machine"
        log(f"{name} is {place} of {self.record['job_dir']}")
        self.name = name
        file = HOME / "agent.pyz"
        if sha256_of(file) != self.record["agent_sha256"]:
            retry("the agent file cannot be fetched", lambda: self.fetch(file), self.host.RETRY_TIMEOUT_S)
        deaths = 0
        while deaths < AGENT_TRIES:
            code = self.run_agent(file, name, left)
            if code in ENDED or self.going_down:
                log(f"the agent has ended with exit code {code}")
                return code
            if code == EXIT_RESTART:
                log("the machine was to be restarted, and was not: the agent goes on")
                continue
            if code == EXIT_LEAVES:
                if self.leave():
                    return 0
                if not self.stays and self.goes_down_in(LEAVE_AGAIN_S):
                    return code
                continue
            if code == EXIT_UNREACHABLE:
                raise PermanentError(f"{self.record['job_dir']} could not be used for too long: {last_line()}")
            deaths += 1
            log(f"the agent has died with exit code {code}")
        raise PermanentError(f"the agent died {AGENT_TRIES} times, at last with exit code {code}: {last_line()}")

    def schedule_shutdown(self) -> float | None:
        """Schedule the unconditional end of the machine; return the remaining seconds, None if its lifetime is
        unlimited."""
        lifetime_s, path = self.record["lifetime_s"], HOME / "ends"
        if lifetime_s is None:
            return None
        if not path.exists():
            write(path, str(time.time() + lifetime_s).encode())
        left = min(lifetime_s, max(1.0, float(path.read_text()) - time.time()))
        self.host.schedule_shutdown(left)  # the agent has the same limit
        return float(left)

    def fetch(self, file: Path) -> None:
        """Download the agent file and check its hash. Raises OSError, PermanentError."""
        data = self.bucket.get(self.record["agent_key"])
        found = hashlib.sha256(data).hexdigest()
        if found != self.record["agent_sha256"]:
            raise PermanentError(
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
            retry("this machine cannot leave its group", self.leave_group, LEAVE_S)
        except PermanentError as error:
            log(f"{error}. It {'asks again' if one_job else 'stays, and does jobs, until the fleet is scaled down'}")
            self.stays = not one_job
            return False
        return True

    def leave_or_be_replaced(self, reason: str) -> None:
        """Decide whether an unusable machine of one job's group is to be replaced.

        Normally it just ends and the group replaces it. After MAX_REPLACEMENTS failures, or if their number is unknown,
        it leaves the group instead, because no supervisor may be running to stop the replacements."""
        if not self.record["one_job"]:
            return
        try:
            replaced = self.record_failure(reason)
        except NETWORK_ERRORS as error:
            log(f"it is not known how many have failed: {error}")
            replaced = False
        if not replaced:
            self.leave()

    def record_failure(self, reason: str) -> bool:
        """Record the failure; return whether it is among the first MAX_REPLACEMENTS. Simultaneous failures may count
        as one. Raises OSError."""
        for number in range(MAX_REPLACEMENTS):
            key = f"failed/{number}"
            try:
                self.bucket.get(key)
            except ErrorResponse as error:
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
        """Handle SIGTERM, which announces a shutdown: stop the agent, and create `rebooting` if the machine will boot
        again."""
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
        except NETWORK_ERRORS:
            return False
        return True

    def write_failure(self, reason: str) -> None:
        """Write an error as the node's result, unless the agent has written one, so that the job does not wait for this
        machine. A fleet's machine writes it into its member folder. Raises PermanentError."""
        if self.record["fleet"]:
            key, data = f"members/{self.name}/failed.json", json.dumps({"reason": reason, "time": time.time()}).encode()
            if self.name:
                retry("no word can be left", lambda: self.bucket.create(key, data), LAST_RETRY_TIMEOUT_S)
            return
        with contextlib.suppress(PermanentError):
            self.node = self.host.node()
        if not self.node:  # unknown
            return
        end = {"outcome": "error", "exit_code": None, "reason": reason, "started": self.started, "ended": time.time()}
        data = json.dumps(end).encode()
        retry(
            "no word can be left", lambda: self.bucket.create(self.node_key("result.json"), data), LAST_RETRY_TIMEOUT_S
        )

    def write_job_dir_error(self) -> None:
        """Write the reason for which the agent gave up on the job dir, in case the job dir can be reached again.

        This is not a result: the node is lost, and the job continues with another machine.
        """
        reason = f"{self.record['job_dir']} could not be used for too long: {last_line()}"
        log(reason)
        if self.record["fleet"]:
            return
        key = self.node_key("gave_up.json")
        data = json.dumps({"reason": reason, "time": time.time()}).encode()
        with contextlib.suppress(PermanentError):
            retry("no word can be left", lambda: self.bucket.create(key, data), LAST_RETRY_TIMEOUT_S)

    def exit_code(self, of_agent: int) -> int:
        """Return the exit code of the node's program. The agent's code 0 means only that the node's result is
        written."""
        if of_agent:
            return abs(of_agent)  # negative: killed by a signal

        def read() -> Any:  # parsed JSON
            return json.loads(self.bucket.get(self.node_key("result.json")))

        try:  # retried, because an exit code of failure makes Vertex end the whole job
            result = retry("the node's result cannot be read", read, LAST_RETRY_TIMEOUT_S)
        except PermanentError as error:
            log(str(error))
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


def reexec_in_newer_python() -> None:
    """Re-execute in Python 3.11 or newer if this one is older. Raises PermanentError if there is none."""
    if tuple(sys.version_info) >= (3, 11):
        return
    for minor in range(20, 10, -1):
        found = shutil.which(f"python3.{minor}")
        if found:
            os.execv(found, [found, *sys.argv])  # noqa: S606
    raise PermanentError(
        f"the image has Python {sys.version.split()[0]}, and none of 3.11 or newer: choose another image"
    )


def main() -> None:
    """Run the bootstrap. Exit code 1 means that the machine may stay up: systemd then ends it (service.py)."""
    machine = Machine(json.loads((HOME / "boot.json").read_text()))
    code = machine.boot()
    machine.ending = True
    ends = machine.host.end(machine.going_down, lambda: machine.exit_code(code), machine.has_ended)
    sys.exit(0 if ends else 1)


if __name__ == "__main__":
    main()
