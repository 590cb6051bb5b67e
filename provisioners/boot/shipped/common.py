"""Helpers shared by the bootstrap's modules: HTTP, retries, commands, files."""

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
from typing import Any, Callable  # noqa: UP035 - must compile in older Pythons, too

HOME = Path(__file__).resolve().parent
PAUSE_S = (1.0, 15.0)
TIMEOUT_S = 10.0
"""Timeout in seconds to connect, and between two parts of a response. It is short because requests are retried, and the
machine is billed meanwhile."""
LARGEST = 256 << 20
"""Largest response in bytes; an agent file has about 8 MB."""
SYNC_S = 10.0
"""Timeout of sync(1) in seconds; a file system that the program has mounted may hang."""
LONGEST_S = 600.0  # limit of `Retry-After`: waiting machines are billed
NETWORK_ERRORS = (OSError, http.client.HTTPException, ValueError, LookupError)
"""Exceptions of a failed network request: no response, or a malformed one."""
ABSENT = ("NoSuchKey", "NoSuchBucket", "BlobNotFound", "ContainerNotFound")
"""Error codes for a missing object, which are not retried."""


class PermanentError(Exception):
    """An error that a retry would not resolve; its message is reported as the reason."""


class ErrorResponse(OSError):  # noqa: N818
    """Error response of an object store or an API."""

    def __init__(self, status: int, body: str, again: str | None = None) -> None:
        """`again`: the header `Retry-After`; a date in it is ignored."""
        self.status = status
        self.after_s = min(float(again), LONGEST_S) if again and again.isdecimal() else 0.0
        self.code, message = self.read(body)
        super().__init__(f"HTTP {status} {self.code}: {message or 'no message'}")

    @staticmethod
    def read(body: str) -> tuple[str, str]:
        """Parse code and message from XML (object stores) or JSON (APIs of Google and Azure)."""
        found = re.search("<Code>(.*?)</Code>", body), re.search("<Message>(.*?)</Message>", body, re.DOTALL)
        if found[0] or found[1]:
            return found[0][1] if found[0] else "", found[1][1] if found[1] else ""
        try:
            error = json.loads(body)["error"]
            code = error["errors"][0]["reason"] if "errors" in error else error["code"]
            return str(code), str(error["message"])
        except (ValueError, LookupError, TypeError):
            return "", ""


def log(text: str) -> None:
    print(f"cloudgpu: {text}", flush=True)


def ask(request: urllib.request.Request, timeout: float | None = None) -> bytes:
    """Send a request and return the body. Proxies are not used: metadata server and store are reached directly.

    `timeout`: seconds, instead of TIMEOUT_S. Raises OSError.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=timeout or TIMEOUT_S) as answer:
        data = bytes(answer.read(LARGEST + 1))
        if len(data) > LARGEST:
            raise OSError(f"{request.full_url} has more than {LARGEST} bytes")
        if answer.length:
            raise OSError(f"{request.full_url}: the answer is cut off after {len(data)} bytes")
    return data


def retry(what: str, call: Callable[[], object], timeout_s: float, longest_s: float = PAUSE_S[1]) -> Any:
    """Retry `call` with exponential backoff up to `longest_s`, or after `Retry-After`, for `timeout_s` seconds.

    Returns its result. Raises PermanentError with the last error, at once if the object does not exist."""
    until, pause = time.monotonic() + timeout_s, PAUSE_S[0]
    while True:
        try:
            return call()
        except NETWORK_ERRORS as error:
            reason = f"{what}: {error or type(error).__name__}"
            is_permanent = isinstance(error, ErrorResponse) and error.code in ABSENT
            wait = max(pause, error.after_s if isinstance(error, ErrorResponse) else 0.0)
            if is_permanent or time.monotonic() + wait > until:
                raise PermanentError(reason) from error
        log(f"{reason}; trying again")
        time.sleep(wait)
        pause = min(2 * pause, longest_s)


def power_off() -> bool:
    """Start powering the machine off; return whether one of the commands worked."""
    flush()
    ways = (("shutdown", "-P", "now"), ("systemctl", "poweroff", "--force"), ("poweroff", "-f"))
    return any(command(*words) is not None for words in ways)


def flush() -> None:
    """Sync all file systems, or give up after SYNC_S.

    A separate process is used because sync may hang in the kernel: the process is then abandoned, whereas a hanging
    thread would keep this process from exiting.
    """
    try:
        subprocess.Popen(["sync"]).wait(SYNC_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        log(f"not all is written to disk: {error}")


def command(*words: str) -> str | None:
    """Run a command and return its output; None if it fails, which is logged. Never raises."""
    try:
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        log(f"{' '.join(words)}: {error}")
        return None
    text = done.stdout.decode(errors="replace")
    if done.returncode:
        log(f"{' '.join(words)}: exit code {done.returncode}: {text.strip()}")
        return None
    return text


def schedule_shutdown(left_s: float) -> None:
    """Schedule a power-off after `left_s` seconds. shutdown(8) counts whole minutes."""
    command("shutdown", "-P", f"+{max(1, -int(-left_s // 60))}")


def pending_shutdown() -> str:
    """Return systemd's pending shutdown: `reboot`, `poweroff`, "" (none), or `unknown` if systemd does not answer."""
    jobs = command("systemctl", "list-jobs", "--no-legend")
    if jobs is None:
        return "unknown"
    if re.search(r"\b(reboot|kexec|soft-reboot)\.target\s+start", jobs):
        return "reboot"
    return "poweroff" if re.search(r"\b(poweroff|halt)\.target\s+start", jobs) else ""


def write(path: Path, data: bytes) -> None:
    """Write a file atomically, even if the machine goes down meanwhile."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
