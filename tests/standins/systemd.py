"""Subset of systemd used by cloudgpu's machines: enabling and starting services, and actions after they end.

It follows systemd.unit(5), systemd.service(5) and systemd.kill(5). An unknown setting is an error.
"""

from __future__ import annotations

import shlex
import signal
from dataclasses import dataclass

# Settings that are obeyed, and settings that are ignored because they have no effect on a process of the tester.
_OBEYED = {
    "ExecStart", "FailureAction", "KillMode", "TimeoutStopSec", "WantedBy", "Environment", "Type", "Restart",
    "RefuseManualStop", "ExecStopPost",
}  # fmt: skip
_ACCEPTED = {
    "Description", "Documentation", "Wants", "After", "OOMPolicy", "TasksMax", "LimitNOFILE", "LimitMEMLOCK",
    "LimitSTACK", "StandardOutput", "StandardError", "WorkingDirectory", "ConditionPathExists", "StartLimitIntervalSec",
}  # fmt: skip
_CLEAN = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)
_SECTIONS = {"Unit", "Service", "Install"}


class UnitError(ValueError):
    """Unit file that systemd would ignore or misinterpret."""


@dataclass(frozen=True)
class Service:
    """A unit file of type service."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str]
    failure_action: str
    """`none` or `poweroff`."""
    stop_s: float
    wanted: bool
    """True if enabling it makes it start at boot."""
    refuses_stop: bool
    """True if `systemctl stop` and `restart` are refused; a shutdown still stops it."""
    stop_post: tuple[str, ...] = ()
    """Command that runs after the main process has ended, with or without an error."""


def read_service(name: str, text: str) -> Service:
    """Parse a unit file. Raises UnitError."""
    values: dict[str, str] = {}
    environment: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith(("#", ";")):
            continue
        if line.startswith("["):
            if line.strip("[] ") not in _SECTIONS:
                raise UnitError(f"{name}: unknown section {line}")
            continue
        key, equals, value = (part.strip() for part in line.partition("="))
        if not equals or key not in _OBEYED | _ACCEPTED:
            raise UnitError(f"{name}: unknown setting {line!r}")
        if key == "Environment":
            environment.update(dict(word.partition("=")[::2] for word in shlex.split(value)))
        values[key] = value
    _check(name, values)
    return Service(
        name,
        tuple(shlex.split(values["ExecStart"])),
        environment,
        values.get("FailureAction", "none"),
        float(values.get("TimeoutStopSec", "90").removesuffix("s")),
        values.get("WantedBy") == "multi-user.target",
        values.get("RefuseManualStop", "no") == "yes",
        tuple(shlex.split(values.get("ExecStopPost", ""))),
    )


@dataclass(frozen=True)
class Exit:
    """Exit status of a main process, in the terms of systemd.exec(5)."""

    code: int
    """Return code as in subprocess: negative after a signal."""

    @property
    def is_clean(self) -> bool:
        return self.code == 0 or -self.code in _CLEAN

    def environment(self) -> dict[str, str]:
        """Return the environment of ExecStopPost."""
        if self.code >= 0:
            how, status, result = "exited", str(self.code), "success" if self.code == 0 else "exit-code"
        else:
            how, status = "killed", signal.Signals(-self.code).name.removeprefix("SIG")
            result = "success" if self.is_clean else "signal"
        return {"SERVICE_RESULT": result, "EXIT_CODE": how, "EXIT_STATUS": status}


def _check(name: str, values: dict[str, str]) -> None:
    known = {
        "FailureAction": ("none", "poweroff"),
        "KillMode": ("mixed",),
        "Type": ("simple", "exec"),
        "Restart": ("no",),
        "RefuseManualStop": ("no", "yes"),
    }
    for key, choices in known.items():
        if values.get(key, choices[0]) not in choices:
            raise UnitError(f"{name}: {key}={values[key]} is not understood here")
    for key in ("ExecStart", "ExecStopPost"):
        if not values.get(key, "/" if key == "ExecStopPost" else "").startswith("/"):
            raise UnitError(f"{name}: {key} must begin with an absolute path")
