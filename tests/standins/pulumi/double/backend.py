"""Backend: files, locks and messages. Source: pulumi/pulumi, pkg/backend/diy.

    .pulumi/meta.yaml                                             version: 1
    .pulumi/stacks/<project>/<stack>.json                         the checkpoint; .json.bak: the previous one
    .pulumi/locks/organization/<project>/<stack>/<id>.json        {"pid", "username", "hostname", "timestamp"}
    .pulumi/history/<project>/<stack>/<stack>-<ns>.history.json   summary of an update, and .checkpoint.json
    .pulumi/backups/<project>/<stack>/<stack>.<ns>.json           the checkpoint after an update

A lock stays until its process or `pulumi cancel` removes it. Newer versions of Pulumi remove locks of dead processes on
the same host; this one does not.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import socket
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .buckets import BackendError, Bucket
from .secrets import Crypter
from .state import STACK_TYPE, Snapshot

__all__ = ["Backend", "BackendError", "Name"]

_HOME = ".pulumi"


@dataclass(frozen=True)
class Name:
    """Name of a stack."""

    project: str
    stack: str

    @property
    def qualified(self) -> str:
        return f"organization/{self.project}/{self.stack}"

    @classmethod
    def parse(cls, text: str, project: str | None) -> Name:
        """Parse `stack`, `organization/stack` or `organization/project/stack`. Raises BackendError."""
        organization, *rest = ["organization", text] if "/" not in text else text.split("/")
        if organization != "organization":
            raise BackendError("organization name must be 'organization'")
        if len(rest) == 1 and project is None:
            raise BackendError(
                "if you're using the --stack flag, pass the fully qualified name (organization/project/stack)"
            )
        return cls(*rest) if len(rest) == 2 else cls(project or "", rest[0])


class Backend:
    """Backend at a URL."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._bucket = Bucket(url)
        if self._bucket.read(f"{_HOME}/meta.yaml") is None:
            self._bucket.check()
            self._bucket.write(f"{_HOME}/meta.yaml", b"version: 1\n")

    # --- stacks -------------------------------------------------------------------------------------------------------

    def exists(self, name: Name) -> bool:
        return self._bucket.read(_checkpoint(name)) is not None

    def require(self, name: Name) -> None:
        if not self.exists(name):
            raise BackendError(f"no stack named '{name.stack}' found")

    def create(self, name: Name) -> None:
        with self.locked(name):
            if self.exists(name):
                raise BackendError(f"stack '{name.qualified}' already exists")
            self._write(name, None)

    def remove(self, name: Name, *, force: bool, backups: bool) -> None:
        """Remove a stack. `backups`: remove its backups too; otherwise they stay, and the checkpoint is saved with
        them."""
        with self.locked(name):
            there = (self._read(name) or {}).get("resources") or []
            if not force and [one for one in there if one["type"] != STACK_TYPE]:
                raise BackendError(
                    f"'{name.stack}' still has resources; removal rejected. Possible actions:\n"
                    f"- Make sure that '{name.stack}' is the stack that you want to destroy\n"
                    "- Run `pulumi destroy` to delete the resources, then run `pulumi stack rm`\n"
                    "- Run `pulumi stack rm --force` to override this error"
                )
            bak = f"{_checkpoint(name)}.bak"
            if not backups:
                self._bucket.write(bak, self._bucket.read(_checkpoint(name)) or b"")
            gone = [bak, *self._bucket.keys(_backups(name))] if backups else []
            for key in (_checkpoint(name), *self._bucket.keys(_history(name)), *gone):
                self._bucket.delete(key)

    def stacks(self, project: str | None) -> list[Name]:
        keys = [key.removeprefix(f"{_HOME}/stacks/") for key in self._bucket.keys(f"{_HOME}/stacks")]
        found = [Name(*key.removesuffix(".json").split("/")) for key in keys if key.endswith(".json")]
        return [one for one in found if project in (None, one.project)]

    # --- state --------------------------------------------------------------------------------------------------------

    def salt(self, name: Name) -> str | None:
        """Return the salt of the state's secrets; None: there is no state yet."""
        found = (self._read(name) or {}).get("secrets_providers")
        return str(found["state"]["salt"]) if found else None

    def load(self, name: Name, crypter: Crypter) -> Snapshot:
        return Snapshot.from_json(self._read(name), crypter)

    def save(self, name: Name, snapshot: Snapshot, crypter: Crypter) -> None:
        self._write(name, snapshot.to_json(crypter))

    def export(self, name: Name) -> dict[str, Any]:
        return {"version": 3, "deployment": self._read(name)}

    def _read(self, name: Name) -> dict[str, Any] | None:
        latest = json.loads(self._bucket.read(_checkpoint(name)) or b"{}").get("checkpoint", {}).get("latest")
        return dict(latest) if latest else None

    def _write(self, name: Name, deployment: dict[str, Any] | None) -> None:
        key = _checkpoint(name)
        before = self._bucket.read(key)
        if before is not None:
            self._bucket.write(f"{key}.bak", before)
        checkpoint = {"stack": name.qualified, **({"latest": deployment} if deployment else {})}
        self._bucket.write(key, json.dumps({"version": 3, "checkpoint": checkpoint}).encode())

    # --- history ------------------------------------------------------------------------------------------------------

    def add_history(self, name: Name, update: dict[str, Any]) -> None:
        stem, checkpoint = (
            f"{_history(name)}/{name.stack}-{time.time_ns()}",
            self._bucket.read(_checkpoint(name)) or b"",
        )
        self._bucket.write(f"{stem}.history.json", json.dumps(update).encode())
        self._bucket.write(f"{stem}.checkpoint.json", checkpoint)
        self._bucket.write(f"{_backups(name)}/{name.stack}.{time.time_ns()}.json", checkpoint)

    def history(self, name: Name) -> list[dict[str, Any]]:
        """Return the updates, newest first."""
        keys = [key for key in self._bucket.keys(_history(name)) if key.endswith(".history.json")]
        return [json.loads(self._bucket.read(key) or b"{}") for key in reversed(keys)]

    # --- locks --------------------------------------------------------------------------------------------------------

    def locks(self, name: Name) -> list[str]:
        """Return the keys of the stack's locks."""
        return self._bucket.keys(_locks(name))

    @contextlib.contextmanager
    def locked(self, name: Name) -> Iterator[None]:
        """Hold the stack's lock. Raises BackendError if another process holds one."""
        mine = f"{_locks(name)}/{uuid.uuid4()}.json"
        self._check_locks(name, mine)
        held = {
            "pid": os.getpid(),
            "username": getpass.getuser(),
            "hostname": socket.gethostname(),
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        self._bucket.write(mine, json.dumps(held).encode())
        try:
            self._check_locks(name, mine)
            yield
        finally:
            self._bucket.delete(mine)  # another user's `pulumi cancel` may have removed it

    def _check_locks(self, name: Name, mine: str) -> None:
        others = {one: self._bucket.read(one) for one in self.locks(name) if one != mine}
        # a missing lock was just released
        found = {one: json.loads(data) for one, data in others.items() if data is not None}
        if not found:
            return
        text = (
            f"the stack is currently locked by {len(found)} lock(s). Either wait for the other process(es) to end or "
            "delete the lock file with `pulumi cancel`."
        )
        for one, held in found.items():
            who = f"{held['username']}@{held['hostname']} (pid {held['pid']}) at {held['timestamp']}"
            text += f"\n  {self._bucket.place(one)}: created by {who}"
        raise BackendError(text)

    def cancel(self, name: Name) -> None:
        """Remove the stack's locks, without stopping the processes that hold them."""
        for one in self.locks(name):
            self._bucket.delete(one)


def _checkpoint(name: Name) -> str:
    return f"{_HOME}/stacks/{name.project}/{name.stack}.json"


def _history(name: Name) -> str:
    return f"{_HOME}/history/{name.project}/{name.stack}"


def _backups(name: Name) -> str:
    return f"{_HOME}/backups/{name.project}/{name.stack}"


def _locks(name: Name) -> str:
    return f"{_HOME}/locks/{name.qualified}"
