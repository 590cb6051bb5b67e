"""What all parts of the bootstrap share: HTTP, patience, commands, files."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Callable  # noqa: UP035 - also read by Pythons that are too old to run it

HOME = Path(__file__).resolve().parent
PAUSE_S = (1.0, 15.0)
SILENCE_S = 10.0
"""Limits the seconds to connect, and those between two parts of an answer. A request that hangs costs no more: the
machine is paid for meanwhile, and the request is made again."""
LARGEST = 256 << 20
"""Limits the bytes of an answer; an agent file has some 8 MB."""
SYNC_S = 10.0
"""Limits the seconds to write out file systems, of which one that the program has mounted may hang."""
LONGEST_S = 600.0  # of what a `Retry-After` may ask for: machines that wait are paid for
TROUBLE = (OSError, http.client.HTTPException, ValueError, LookupError)
"""What asking somebody over the network may raise: there was no answer, or a broken one."""
ABSENT = ("NoSuchKey", "NoSuchBucket", "BlobNotFound", "ContainerNotFound")


class Hopeless(Exception):  # noqa: N818
    """Trying again would change nothing; the message is what is told."""


class Refused(OSError):  # noqa: N818
    """A store or an API has answered, and not with what was asked for."""

    def __init__(self, status: int, body: str, again: str | None = None) -> None:
        """`again`: the header `Retry-After`; a date in it is not looked at."""
        self.status = status
        self.after_s = min(float(again), LONGEST_S) if again and again.isdecimal() else 0.0
        self.code, message = self.read(body)
        super().__init__(f"HTTP {status} {self.code}: {message or 'no message'}")

    @staticmethod
    def read(body: str) -> tuple[str, str]:
        """Code and message, of XML as stores answer, or of JSON as Google's and Azure's APIs do."""
        found = re.search("<Code>(.*?)</Code>", body), re.search("<Message>(.*?)</Message>", body, re.DOTALL)
        if found[0] or found[1]:
            return found[0][1] if found[0] else "", found[1][1] if found[1] else ""
        try:
            error = json.loads(body)["error"]
            code = error["errors"][0]["reason"] if "errors" in error else error["code"]
            return str(code), str(error["message"])
        except (ValueError, LookupError, TypeError):
            return "", ""


def say(text: str) -> None:
    print(f"cloudgpu: {text}", flush=True)


def ask(request: urllib.request.Request, timeout: float | None = None) -> bytes:
    """Return the whole answer, without any proxy: neither the metadata server nor a store is behind one.

    `timeout`: seconds, in place of SILENCE_S. Raises OSError.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=timeout or SILENCE_S) as answer:
        data = bytes(answer.read(LARGEST + 1))
        if len(data) > LARGEST:
            raise OSError(f"{request.full_url} has more than {LARGEST} bytes")
        if answer.length:
            raise OSError(f"{request.full_url}: the answer is cut off after {len(data)} bytes")
    return data


def insist(what: str, call: Callable[[], object], patience_s: float, longest_s: float = PAUSE_S[1]) -> Any:
    """Call again for a while, with pauses that grow to the longest, or are as long as the answer asks for. Raises
    Hopeless with the last reason."""
    until, pause = time.monotonic() + patience_s, PAUSE_S[0]
    while True:
        try:
            return call()
        except TROUBLE as error:
            reason = f"{what}: {error or type(error).__name__}"
            hopeless = isinstance(error, Refused) and error.code in ABSENT
            wait = max(pause, error.after_s if isinstance(error, Refused) else 0.0)
            if hopeless or time.monotonic() + wait > until:
                raise Hopeless(reason) from error
        say(f"{reason}; trying again")
        time.sleep(wait)
        pause = min(2 * pause, longest_s)


def power_off() -> bool:
    """Begin to switch the machine off; return whether one of the ways has worked."""
    flush()
    ways = (("shutdown", "-P", "now"), ("systemctl", "poweroff", "--force"), ("poweroff", "-f"))
    return any(command(*words) is not None for words in ways)


def flush() -> None:
    """Write out all file systems, or give up after SYNC_S.

    By a process of its own: one that hangs in the kernel cannot be killed, and is left behind. A thread that hangs
    there would keep this process from ending.
    """
    try:
        subprocess.Popen(["sync"]).wait(SYNC_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        say(f"not all is written to disk: {error}")


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


def limit_life(left_s: float) -> None:
    """Have the machine powered off in the end, whatever happens until then. shutdown(8) counts whole minutes."""
    command("shutdown", "-P", f"+{max(1, -int(-left_s // 60))}")


def goes_down_to() -> str:
    """Return where systemd is going: `reboot`, `poweroff`, `unknown` where it does not answer, or "" where the machine
    stays up."""
    jobs = command("systemctl", "list-jobs", "--no-legend")
    if jobs is None:
        return "unknown"
    if re.search(r"\b(reboot|kexec|soft-reboot)\.target\s+start", jobs):
        return "reboot"
    return "poweroff" if re.search(r"\b(poweroff|halt)\.target\s+start", jobs) else ""


def write(path: Path, data: bytes) -> None:
    """All of it or nothing, also when the machine goes down meanwhile."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
