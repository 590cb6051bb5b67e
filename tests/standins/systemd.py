"""As much of systemd as a machine of ours uses: services that are enabled, started, and what happens at their end.

After systemd.unit(5), systemd.service(5) and systemd.kill(5). A setting that is not known here is an error.
"""

from __future__ import annotations

import shlex
import signal
from dataclasses import dataclass

# What is obeyed, and what is accepted because it has no meaning for a process on the tester's own machine.
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
    """systemd would not have done what was meant."""


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
    """Whether enabling it has it started at boot."""
    refuses_stop: bool
    """`systemctl stop` and `restart` are refused; a shutdown stops it all the same."""
    stop_post: tuple[str, ...] = ()
    """Is run after the main process, however that has ended."""


def read_service(name: str, text: str) -> Service:
    """Raises UnitError."""
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
    """How a main process has ended, as systemd.exec(5) names it."""

    code: int
    """As subprocess has it: negative after a signal."""

    @property
    def is_clean(self) -> bool:
        return self.code == 0 or -self.code in _CLEAN

    def environment(self) -> dict[str, str]:
        """Of ExecStopPost."""
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
