"""What a cloud machine runs on every boot: get the agent file from the job dir, run it, power the machine off.

It is sent as user data and runs alone: Python's standard library only, beside boot.json (BootRecord). What goes wrong
is said on the console and, so far as the bucket can be reached, as the node's result in the job dir.
"""

# ruff: noqa: S310 - every address is the metadata server's or S3's

from __future__ import annotations

import contextlib
import datetime
import hashlib
import hmac
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Callable  # noqa: UP035 - also read by Pythons that are too old to run it

HOME = Path(__file__).resolve().parent
PATIENCE_S = 300.0  # a role that was made a minute ago is not known everywhere yet, a network may come late
LAST_PATIENCE_S = 60.0
PAUSE_S = (1.0, 15.0)
AGENT_TRIES = 3  # an agent that dies goes on where it was
WORDLESS = {3, 4, 5, 6}  # exit codes of the agent that leave nothing to say: runtime/agent.py


class Hopeless(Exception):  # noqa: N818
    """Trying again would change nothing; the message is what is told."""


class Refused(OSError):  # noqa: N818
    """S3 has answered, and not with what was asked for."""

    def __init__(self, status: int, body: str) -> None:
        found = re.search("<Code>(.*?)</Code>", body), re.search("<Message>(.*?)</Message>", body)
        self.status, self.code = status, found[0][1] if found[0] else ""
        super().__init__(f"HTTP {status} {self.code}: {found[1][1] if found[1] else 'no message'}")


def say(text: str) -> None:
    print(f"cloudgpu: {text}", flush=True)


# --- the bucket ----------------------------------------------------------------------------------------------------


def ask(request: urllib.request.Request, timeout: float = 60.0) -> Any:  # noqa: ANN401 - HTTPResponse, or a file
    """An answer, past whatever proxy the environment names: neither the metadata server nor S3 is behind one."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=timeout)


def metadata(path: str) -> str:
    """From the instance metadata service, version 2."""
    given = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or "http://169.254.169.254"
    base = given.rstrip("/") + "/latest"
    headers = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    token = ask(urllib.request.Request(f"{base}/api/token", headers=headers, method="PUT"), 5).read().decode()
    request = urllib.request.Request(f"{base}/meta-data/{path}", headers={"X-aws-ec2-metadata-token": token})
    return str(ask(request, 5).read().decode())


def credentials() -> dict[str, str]:
    """Of the machine's role."""
    path = "iam/security-credentials/"
    known: dict[str, str] = json.loads(metadata(path + metadata(path).split()[0]))
    return known


class Bucket:
    """The job dir's bucket, asked with the machine's role."""

    def __init__(self, job_dir: str, region: str, endpoint: str | None) -> None:
        self.name, _, self.prefix = job_dir.partition("://")[2].partition("/")
        self.region, self.endpoint = region, endpoint
        self.ahead_s = 0.0  # by how much S3's clock is ahead of this machine's

    def get(self, key: str) -> bytes:
        return self.send("GET", key)

    def create(self, key: str, body: bytes) -> None:
        """Write it, unless there is such an object already."""
        try:
            self.send("PUT", key, body, {"if-none-match": "*"})
        except Refused as error:
            if error.status != 412:
                raise

    def send(self, method: str, key: str, body: bytes = b"", headers: dict[str, str] | None = None) -> bytes:
        """What S3 answers. Raises OSError, and has then learnt what a next try needs."""
        try:
            return bytes(ask(self.signed(method, key, body, headers or {})).read())
        except urllib.error.HTTPError as error:
            self.region = error.headers.get("x-amz-bucket-region") or self.region
            refused = Refused(error.code, error.read(65_536).decode(errors="replace"))
            if refused.code == "RequestTimeTooSkewed" and error.headers.get("Date"):
                self.ahead_s = parsedate_to_datetime(error.headers["Date"]).timestamp() - time.time()
            raise refused from error

    def signed(self, method: str, key: str, body: bytes, headers: dict[str, str]) -> urllib.request.Request:
        """AWS Signature Version 4, as in the S3 API reference: "Authenticating Requests"."""
        known = credentials()
        host, path = self.address("/".join(part for part in (self.prefix, key) if part))
        moment = datetime.datetime.fromtimestamp(time.time() + self.ahead_s, datetime.timezone.utc)  # noqa: UP017
        stamp, scope = moment.strftime("%Y%m%dT%H%M%SZ"), f"{moment:%Y%m%d}/{self.region}/s3/aws4_request"
        digest = hashlib.sha256(body).hexdigest()
        sent = {
            **headers,
            "host": host.partition("://")[2],
            "x-amz-content-sha256": digest,
            "x-amz-date": stamp,
            "x-amz-security-token": known["Token"],
        }
        names = ";".join(sorted(sent))
        lines = [method, path, "", *(f"{name}:{sent[name]}" for name in sorted(sent)), "", names, digest]
        canonical = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        secret = f"AWS4{known['SecretAccessKey']}".encode()
        for part in (*scope.split("/"), "\n".join(("AWS4-HMAC-SHA256", stamp, scope, canonical))):
            secret = hmac.new(secret, part.encode(), hashlib.sha256).digest()
        who = f"Credential={known['AccessKeyId']}/{scope}"
        sent["authorization"] = f"AWS4-HMAC-SHA256 {who}, SignedHeaders={names}, Signature={secret.hex()}"
        data = body if method == "PUT" else None
        return urllib.request.Request(host + path, data=data, headers=sent, method=method)

    def address(self, key: str) -> tuple[str, str]:
        """Scheme and host, and the path. A bucket with dots in its name is in no certificate: it goes into the path."""
        path = "/" + urllib.parse.quote(key, safe="/~")
        if self.endpoint:
            return self.endpoint.rstrip("/"), f"/{self.name}{path}"
        host = f"s3.{self.region}.amazonaws.com" + (".cn" if self.region.startswith("cn-") else "")
        return (f"https://{host}", f"/{self.name}{path}") if "." in self.name else (f"https://{self.name}.{host}", path)


def insist(what: str, call: Callable[[], Any], patience_s: float) -> Any:  # noqa: ANN401
    """Call again for a while. Raises Hopeless with the last reason."""
    until, pause = time.monotonic() + patience_s, PAUSE_S[0]
    while True:
        try:
            return call()
        except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
            reason = f"{what}: {error or type(error).__name__}"
            hopeless = isinstance(error, Refused) and error.code in ("NoSuchKey", "NoSuchBucket")
            if hopeless or time.monotonic() + pause > until:
                raise Hopeless(reason) from error
        say(f"{reason}; trying again")
        time.sleep(pause)
        pause = min(2 * pause, PAUSE_S[1])


# --- the machine ---------------------------------------------------------------------------------------------------


class Machine:
    """This machine on this boot. All that is kept from boot to boot are files in HOME."""

    def __init__(self, record: dict[str, Any]) -> None:
        self.record = record
        self.bucket = Bucket(record["job_dir"], record["region"], record["endpoint"])
        self.started = time.time()
        self.agent: subprocess.Popen[bytes] | None = None
        self.rebooting = HOME / "rebooting"
        """Tells the agent that the node has not ended, though everything on the machine does."""
        self.going_down = False

    def run(self) -> None:
        """The whole boot. Raises Hopeless."""
        with contextlib.suppress(FileNotFoundError):
            self.rebooting.unlink()
        signal.signal(signal.SIGTERM, self.on_sigterm)
        left = self.limit_life()
        name = insist("this machine does not learn its name", lambda: metadata("instance-id"), PATIENCE_S)
        file = HOME / "agent.pyz"
        if sha256_of(file) != self.record["agent_sha256"]:
            insist("the agent file cannot be fetched", lambda: self.fetch(file), PATIENCE_S)
        for _ in range(AGENT_TRIES):
            code = self.run_agent(file, name, left)
            if code == 0 or code in WORDLESS or self.going_down:
                say(f"the agent has ended with exit code {code}")
                return
            say(f"the agent has died with exit code {code}")
        raise Hopeless(f"the agent died {AGENT_TRIES} times, at last with exit code {code}: {last_line()}")

    def limit_life(self) -> float | None:
        """Have the machine powered off in the end, whatever happens until then; how many seconds are left."""
        lifetime_s, path = self.record["lifetime_s"], HOME / "ends"
        if lifetime_s is None:
            return None
        if not path.exists():
            write(path, str(time.time() + lifetime_s).encode())
        left = min(lifetime_s, max(1.0, float(path.read_text()) - time.time()))
        command("shutdown", "-P", f"+{max(1, -int(-left // 60))}")  # the agent ends itself as well
        return float(left)

    def fetch(self, file: Path) -> None:
        """Raises OSError, Hopeless."""
        data = self.bucket.get(self.record["agent_key"])
        found = hashlib.sha256(data).hexdigest()
        if found != self.record["agent_sha256"]:
            raise Hopeless(
                f"the agent file {self.record['agent_key']} is not the one that was sent: its sha256 is {found}"
            )
        write(file, data)

    def run_agent(self, file: Path, name: str, left: float | None) -> int:
        """Until it ends; its exit code. All processes of the machine carry its name."""
        record = self.record
        line = [sys.executable, "-I", str(file), "--home", str(HOME), "--notices", record["notices"]]
        line += ["--job-dir", record["job_dir"], "--job-sha256", record["job_sha256"]]
        line += ["--attempt", str(record["attempt"]), "--node", record["node"]]
        line += [] if left is None else ["--lifetime-s", str(left)]
        ends = record["capacity_block_end"]
        line += [] if ends is None else ["--capacity-block-end", str(ends)]
        environment = {"HOME": "/root", "AWS_DEFAULT_REGION": record["region"], **os.environ, "CLOUDGPU_MACHINE": name}
        if record["endpoint"]:
            environment["AWS_ENDPOINT_URL"] = record["endpoint"]
        with (HOME / "agent.log").open("ab") as log:
            self.agent = subprocess.Popen(line, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return self.agent.wait()

    def on_sigterm(self, _number: int, _frame: object) -> None:
        """The machine is going down: whether for good is for systemd to say."""
        self.going_down = True
        jobs = command("systemctl", "list-jobs", "--no-legend")
        if re.search(r"\b(reboot|kexec|soft-reboot)\.target\s+start", jobs or ""):
            self.rebooting.touch()
        if self.agent is None:
            sys.exit(0)
        self.agent.send_signal(signal.SIGTERM)

    def leave_word(self, reason: str) -> None:
        """The node's result, unless the agent has written one: nobody has to wait for this machine."""
        record = self.record
        end = {"outcome": "error", "exit_code": None, "reason": reason, "started": self.started, "ended": time.time()}
        key = f"attempts/{record['attempt']:04d}/nodes/{record['node']}/result.json"
        insist("no word can be left", lambda: self.bucket.create(key, json.dumps(end).encode()), LAST_PATIENCE_S)


def power_off() -> None:
    """The instance is then terminated, for it was launched so."""
    os.sync()
    for words in (("shutdown", "-P", "now"), ("systemctl", "poweroff", "--force"), ("poweroff", "-f")):
        if command(*words) is not None:
            return


def command(*words: str) -> str | None:
    """What it prints; None if it fails, which is said and never raised."""
    try:
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        say(f"{' '.join(words)}: {error}")
        return None
    text = done.stdout.decode(errors="replace")
    if done.returncode:
        say(f"{' '.join(words)}: exit code {done.returncode}: {text.strip()}")
        return None
    return text


def write(path: Path, data: bytes) -> None:
    """All of it or nothing, also when the machine goes down meanwhile."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def sha256_of(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def last_line() -> str:
    """Of what the agent has said."""
    try:
        lines = (HOME / "agent.log").read_bytes()[-4_096:].decode(errors="replace").split("\n")
    except OSError:
        return "it left no log"
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


def newer_python() -> None:
    """Go on in a Python that can run the agent, where this one cannot."""
    if tuple(sys.version_info) >= (3, 11):
        return
    for minor in range(20, 10, -1):
        found = shutil.which(f"python3.{minor}")
        if found:
            os.execv(found, [found, *sys.argv])  # noqa: S606
    raise Hopeless(f"the image has Python {sys.version.split()[0]}, and none of 3.11 or newer: choose another image")


def main() -> None:
    machine = Machine(json.loads((HOME / "boot.json").read_text()))
    try:
        newer_python()
        machine.run()
    except Exception as error:  # noqa: BLE001 - whatever it is, the machine must not stay
        reason = str(error) if isinstance(error, Hopeless) else f"{type(error).__name__}: {error}"
        say(f"this machine cannot be used: {reason}")
        with contextlib.suppress(Hopeless):
            machine.leave_word(f"the machine could not be used: {reason}")
    if not machine.going_down:
        power_off()


if __name__ == "__main__":
    main()
