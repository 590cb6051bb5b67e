"""A stand-in cloud's machine: its user data or startup script runs as local processes, in a folder that is its disk.

    <root>/            the disk: absolute paths of files that user data wrote are resolved here first
    <root>/root        HOME
    <root>/.shims      first on PATH: systemctl, shutdown, poweroff, reboot, halt, sysctl; python3
    <root>/console.log output of all processes

The processes inherit none of the tester's environment: they get PATH, HOME, LANG, TMPDIR, and the variables from the
cloud's stand-in that replace a real machine's network. Its python3 does not belong to a virtual environment.

Cutting the power sends SIGKILL to every process that descends from the machine, has its HOME, or works in its folder.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from . import cloud_config, systemd
from .boots import CloudInit, Init
from .metadata import Answer, MetadataServer, Request
from .processes import kill_all

SHIMS = ("systemctl", "shutdown", "poweroff", "reboot", "halt", "sysctl")
# A separate program, whose Python starts without the machine's environment.
_SHIM = """\
#!{python} -IS
import json, sys, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({{}}))
words = json.dumps(["{name}", *sys.argv[1:]]).encode()
with opener.open(urllib.request.Request("{url}", words), timeout=180) as answer:
    code, text = json.load(answer)
print(text, end="", file=sys.stderr if code else sys.stdout)
sys.exit(code)
"""
_SYSTEM = Path("/etc/systemd/system")
PYTHON: str = getattr(sys, "_base_executable", sys.executable)

Ending = Literal["off", "reboot"]


class _Commands(MetadataServer):
    """HTTP server to which the shims send their arguments."""

    def __init__(self, obey: Callable[[Sequence[str]], tuple[int, str]]) -> None:
        super().__init__()
        self._obey = obey

    def answer(self, request: Request) -> Answer:
        return Answer(body=json.dumps(self._obey(json.loads(request.body))))


class Machine:
    """One machine. `ended` is called when it powers itself off or reboots itself; it is off then."""

    def __init__(
        self, root: Path, init: str | Init, environ: Mapping[str, str], ended: Callable[[Ending], None] | None = None
    ) -> None:
        """`init`: user data for cloud-init, or another boot mechanism."""
        self.root = root
        self.trouble: list[str] = []
        """Problems that would also occur on a real machine; tests assert that it is empty."""
        self.calls: list[str] = []
        """Command lines of all shim calls, one line each."""
        self.broken: set[str] = set()
        """Names in SHIMS that fail."""
        self._init = CloudInit(init) if isinstance(init, str) else init
        self._environ, self._ended = dict(environ), ended
        self.booted = threading.Event()
        """Set once the boot mechanism has finished."""
        self._commands = _Commands(self._command)
        self._lock = threading.RLock()
        self._cutting = threading.Lock()
        """Held while the power is cut, so that a boot cannot begin and be killed as well."""
        self._boots = 0
        self._on = False
        self._going = ""
        """The systemd target of the shutdown in progress; "": none."""
        self._enabled: list[str] = []
        self._services: dict[str, subprocess.Popen[bytes]] = {}
        self._watches: dict[str, threading.Thread] = {}
        """Service name -> thread that waits for its end and then runs ExecStopPost and FailureAction."""
        self._timer: threading.Timer | None = None

    # -- power

    def power_on(self) -> None:
        """Boot in the background. Enabled services and written files persist from earlier boots."""
        with self._cutting, self._lock:
            if self._boots == 0:
                self._commands.__enter__()
                self._install()
            self._boots, self._on, self._going = self._boots + 1, True, ""
            self.booted.clear()
            threading.Thread(target=self._boot, args=(self._boots,), daemon=True).start()

    def cut_power(self) -> None:
        """Send SIGKILL to all processes of the machine."""
        with self._cutting:
            with self._lock:
                self._on = False
                if self._timer is not None:
                    self._timer.cancel()
                    self._timer = None
            kill_all(self.root)
            for process in self._services.values():
                process.wait()
            self._services.clear()

    def shut_down(self, ending: Ending = "off") -> list[int]:
        """Stop the services with SIGTERM, then cut the power; return the services' exit codes."""
        with self._lock:
            if not self._on:
                return []
            self._going = "reboot" if ending == "reboot" else "poweroff"
            services = [(self._service(name), process) for name, process in self._services.items()]
        for service, process in services:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(service.stop_s)
                except subprocess.TimeoutExpired:
                    process.kill()
            self._watches[service.name].join(2 * service.stop_s)
        self.cut_power()
        if self._ended is not None:
            self._ended(ending)
        return [process.returncode for _, process in services]

    def dispose(self) -> None:
        """Cut the power for good and free the resources, except the disk, which the creator of its folder deletes."""
        self.cut_power()
        if self._boots:
            self._boots = 0
            self._commands.__exit__(None, None, None)

    @property
    def is_on(self) -> bool:
        return self._on

    @property
    def console(self) -> str:
        path = self.root / "console.log"
        return path.read_text(errors="replace") if path.exists() else ""

    # -- cloud-init (or another boot mechanism) and systemd

    def _boot(self, boot: int) -> None:
        try:
            plan = self._init.plan(boot, self.root)
            self._run_all(plan.early, boot)
            for file in plan.files:
                self._write(file)
            for name in list(self._enabled):
                self._start_service(name)
            self._run_all(plan.commands, boot)
            self._run_all([str(path) for path in self._per_boot()], boot)
        except (cloud_config.UserDataError, systemd.UnitError, OSError) as error:
            if self._on:
                self._complain(str(error))
        finally:
            self.booted.set()

    def _per_boot(self) -> Sequence[Path]:
        folder = self.root / "var/lib/cloud/scripts/per-boot"
        return sorted(path for path in folder.glob("*") if os.access(path, os.X_OK)) if folder.is_dir() else []

    def _write(self, file: cloud_config.File) -> None:
        path = self.root / file.path.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
        path.chmod(file.mode)

    def _run_all(self, commands: Sequence[cloud_config.Command], boot: int) -> None:
        """Run the commands in order; like cloud-init, continue after a failed command."""
        for command in commands:
            with self._lock:
                if not self._on or self._boots != boot:
                    return
                words = ["sh", "-c", command] if isinstance(command, str) else command
                process = self._spawn(words)
            if (code := process.wait()) and self._on and self._boots == boot:
                self._complain(f"{shlex.join(words)} ended with {code}")

    def _spawn(self, words: Sequence[str], environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        with (self.root / "console.log").open("ab") as console:
            return subprocess.Popen(
                [self._on_disk(word) for word in words],
                cwd=self.root,
                env=self._environment() | dict(environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )

    def _on_disk(self, word: str) -> str:
        """Return the path on the machine's disk if the word is an absolute path of a file there, otherwise the word."""
        path = self.root / word.lstrip("/")
        return str(path) if word.startswith("/") and path.exists() else word

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": f"{self.root / '.shims'}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.root / "root"),
            "LANG": "C.UTF-8",
            "TMPDIR": str(self.root / "tmp"),
            **self._environ,
        }

    def _install(self) -> None:
        for folder in (".shims", "root", "tmp", "var/lib", _SYSTEM.relative_to("/")):
            (self.root / folder).mkdir(parents=True)
        for name in SHIMS:
            text = _SHIM.format(python=PYTHON, name=name, url=self._commands.url)
            self._write(cloud_config.File(f"/.shims/{name}", text.encode(), 0o755))
        (self.root / ".shims/python3").symlink_to(PYTHON)

    # -- commands from the shims

    def _command(self, words: Sequence[str]) -> tuple[int, str]:
        """Return exit code and output of a shim's command."""
        self.calls.append(shlex.join(words))
        name, *arguments = words
        if name in self.broken:
            return 1, f"{name}: it is broken\n"
        if name == "systemctl":
            return self._systemctl(arguments)
        if name == "shutdown":
            return self._shutdown(arguments)
        if name == "sysctl":
            return 0, ""
        self._later(0.0, "reboot" if name == "reboot" else "off")
        return 0, ""

    def _systemctl(self, arguments: Sequence[str]) -> tuple[int, str]:
        verb, *rest = [word for word in arguments if not word.startswith("-")]
        if verb in ("poweroff", "reboot"):
            self._later(0.0, "reboot" if verb == "reboot" else "off")
        elif verb == "daemon-reload" and not rest:
            pass
        elif verb == "list-jobs" and not rest:
            return 0, f"12 {self._going}.target start waiting\n" if self._going else ""
        elif verb in ("enable", "start") and rest:
            try:
                for name in rest:
                    service = self._service(name)
                    if verb == "enable" and service.wanted:
                        self._enabled.append(name)
                    if verb == "start" or "--now" in arguments:
                        self._start_service(name)
            except systemd.UnitError as error:
                self._complain(str(error))
                return 1, f"{error}\n"
        else:
            return self._unknown("systemctl", arguments)
        return 0, ""

    def _shutdown(self, arguments: Sequence[str]) -> tuple[int, str]:
        """Handle `shutdown -P +5`, `shutdown -r now` and `shutdown -c`; a later call replaces an earlier one."""
        options = [word for word in arguments if word.startswith("-")]
        when = next((word for word in arguments if not word.startswith("-")), "+1")
        if not set(options) <= {"-P", "-h", "-r", "-c", "--no-wall"} or not (when == "now" or when[1:].isdecimal()):
            return self._unknown("shutdown", arguments)
        if "-c" in options:
            with self._lock:
                if self._timer is not None:
                    self._timer.cancel()
        else:
            self._later(0.0 if when == "now" else int(when[1:]) * 60.0, "reboot" if "-r" in options else "off")
        return 0, ""

    def _unknown(self, name: str, arguments: Sequence[str]) -> tuple[int, str]:
        text = f"{name} {shlex.join(arguments)} is not understood by the stand-in"
        self._complain(text)
        return 1, text + "\n"

    def _later(self, seconds: float, ending: Ending) -> None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = threading.Timer(seconds, self.shut_down, args=(ending,))
            self._timer.daemon = True
            self._timer.start()

    # -- services

    def _service(self, name: str) -> systemd.Service:
        path = self.root / _SYSTEM.relative_to("/") / name
        if not path.is_file():
            raise systemd.UnitError(f"Unit {name} not found.")
        return systemd.read_service(name, path.read_text())

    def _start_service(self, name: str) -> None:
        service = self._service(name)
        with self._lock:
            running = self._services.get(name)
            if not self._on or (running is not None and running.poll() is None):
                return
            process = self._services[name] = self._spawn(service.command, service.environment)
            watch = threading.Thread(target=self._watch, args=(service, process), daemon=True)
            self._watches[name] = watch
            watch.start()

    def kill_service(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to a service's main process, as the kernel's OOM killer does."""
        self._services[name].send_signal(number)

    def _watch(self, service: systemd.Service, process: subprocess.Popen[bytes]) -> None:
        end = systemd.Exit(process.wait())
        if not self._is_on_with(service, process):
            return
        failed = not end.is_clean
        if service.stop_post:
            after = self._spawn(service.stop_post, {**service.environment, **end.environment()})
            try:
                failed = after.wait(service.stop_s) != 0 or failed
            except subprocess.TimeoutExpired:
                after.kill()
                failed = True
        if failed and service.failure_action == "poweroff" and not self._going and self._is_on_with(service, process):
            self._later(0.0, "off")

    def _is_on_with(self, service: systemd.Service, process: subprocess.Popen[bytes]) -> bool:
        return self._on and self._services.get(service.name) is process

    # -- helpers

    def _complain(self, text: str) -> None:
        self.trouble.append(text)
