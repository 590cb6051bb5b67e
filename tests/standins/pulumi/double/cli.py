"""Pulumi's command line as the Automation API calls it, with the output that it parses. It is not Pulumi.

Source of commands, flags and shapes: pulumi.automation of the installed SDK; texts: pulumi/pulumi, pkg/cmd/pulumi. Any
other command or flag is an error.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import VERSION

_DEFAULT_PARALLEL = 32


def main(arguments: list[str]) -> int:
    """Run a command; return the exit status."""
    given = _parser().parse_args(arguments)
    if given.run is _version:  # before the slow imports of the other commands
        _version(given)
        return 0
    from .backend import BackendError
    from .secrets import SecretsError

    try:
        return int(given.run(given) or 0)
    except (BackendError, SecretsError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 255


class _Place:
    """Folder, backend and stack of a command."""

    def __init__(self, given: argparse.Namespace) -> None:
        from .backend import Backend, BackendError, Name
        from .settings import Project, Settings

        folder = Path(given.cwd or ".").resolve()
        try:
            self.project: Project | None = Project(folder)
        except BackendError:
            self.project = None
        url = os.environ.get("PULUMI_BACKEND_URL") or (self.project.backend if self.project else None)
        self.backend = Backend(url or f"file://{Path.home()}")
        self.selected = _selected(folder)
        text = getattr(given, "stack", None) or getattr(given, "name", None) or self.selected.read()
        self.name = Name.parse(text, self.project.name if self.project else None) if text else None
        config = getattr(given, "config_file", None)
        if self.name is not None:
            self.settings = Settings(Path(config) if config else folder / f"Pulumi.{self.name.stack}.yaml")

    def stack(self) -> Any:
        """Return the name of the stack. Raises BackendError if it does not exist."""
        from .backend import BackendError

        if self.name is None:
            raise BackendError(
                "no stack selected; please use `pulumi stack select` or `pulumi stack init` to choose one"
            )
        self.backend.require(self.name)
        return self.name

    def crypter(self) -> Any:
        """Return the stack's crypter. Raises SecretsError."""
        return self.settings.crypter(self.backend.salt(self.stack()))


class _Selected:
    """Selected stack of a folder, stored in `$PULUMI_HOME/workspaces/<name>.json`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> str | None:
        return str(json.loads(self._path.read_bytes())["stack"]) if self._path.exists() else None

    def write(self, stack: str) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps({"stack": stack}), encoding="utf-8")

    def clear(self) -> None:
        self._path.unlink(missing_ok=True)


def _selected(folder: Path) -> _Selected:
    import hashlib

    home = Path(os.environ.get("PULUMI_HOME") or Path.home() / ".pulumi")
    digest = hashlib.sha1(str(folder).encode(), usedforsecurity=False).hexdigest()
    return _Selected(home / "workspaces" / f"{folder.name}-{digest}-workspace.json")


# --- about ------------------------------------------------------------------------------------------------------------


def _version(_given: argparse.Namespace) -> None:
    print(f"v{VERSION}+double")


def _whoami(given: argparse.Namespace) -> None:
    import getpass

    url = _Place(given).backend.url
    print(json.dumps({"user": getpass.getuser(), "organizations": [], "url": url}) if given.json else getpass.getuser())


def _no_plugins(_given: argparse.Namespace) -> None:
    print("[]")


# --- stacks -----------------------------------------------------------------------------------------------------------


def _stack_init(given: argparse.Namespace) -> None:
    place = _Place(given)
    assert place.name is not None
    if given.secrets_provider not in ("", "passphrase", "default"):
        from .backend import BackendError

        raise BackendError(f"the double keeps secrets with a passphrase only, not {given.secrets_provider}")
    place.settings.crypter(None)
    place.backend.create(place.name)
    if not given.no_select:
        place.selected.write(place.name.stack)
    print(f"Created stack '{place.name.stack}'")


def _stack_select(given: argparse.Namespace) -> None:
    place = _Place(given)
    place.selected.write(place.stack().stack)


def _stack_ls(given: argparse.Namespace) -> None:
    place = _Place(given)
    project = None if given.all or place.project is None else place.project.name
    print(json.dumps([_summary(place, one) for one in place.backend.stacks(project)], indent=2))


def _summary(place: _Place, name: Any) -> dict[str, Any]:
    deployment = place.backend.export(name)["deployment"] or {}
    result = {"name": name.stack, "current": name.stack == place.selected.read()}
    if place.backend.locks(name):
        result["updateInProgress"] = True
    if manifest := deployment.get("manifest"):
        result["lastUpdate"] = manifest["time"]
    return {**result, "resourceCount": len(deployment.get("resources") or [])}


def _stack_rm(given: argparse.Namespace) -> None:
    place = _Place(given)
    name = place.stack()
    place.backend.remove(name, force=given.force, backups=given.remove_backups)
    if not given.preserve_config:
        place.settings.path.unlink(missing_ok=True)
    place.selected.clear()
    print(f"Stack '{name.stack}' has been removed!")


def _stack_output(given: argparse.Namespace) -> None:
    from .. import wire
    from .state import STACK_TYPE, shown

    place = _Place(given)
    snapshot = place.backend.load(place.stack(), place.crypter())
    outputs = next((one.outputs for one in snapshot.resources if one.type == STACK_TYPE), {})
    result = wire.rewritten(wire.plain(outputs), shown) if given.show_secrets else shown(outputs)
    print(json.dumps(result, indent=2))


def _stack_history(given: argparse.Namespace) -> None:
    place = _Place(given)
    crypter = place.crypter()
    updates = place.backend.history(place.stack())
    if given.page_size:
        first = (given.page - 1) * given.page_size
        updates = updates[first : first + given.page_size]
    result = []
    for one in updates:
        times = {key: _stamp(one[key]) for key in ("startTime", "endTime")}
        config = {key: _shown_config(value, crypter, given.show_secrets) for key, value in one["config"].items()}
        result.append({**one, **times, "config": config})
    print(json.dumps(result, indent=2))


def _shown_config(value: dict[str, Any], crypter: Any, show: bool) -> dict[str, Any]:
    if not value.get("secret"):
        return {"value": value["string"], "secret": False}
    return {"value": crypter.decrypt(value["string"]), "secret": True} if show else {"secret": True}


def _stamp(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(seconds))


def _stack_export(given: argparse.Namespace) -> None:
    place = _Place(given)
    result = place.backend.export(place.stack())
    if given.show_secrets:
        result = _decrypted(result, place.crypter())
    print(json.dumps(result, indent=4))


def _decrypted(value: Any, crypter: Any) -> Any:
    from .. import wire

    if isinstance(value, list):
        return [_decrypted(one, crypter) for one in value]
    if not isinstance(value, dict):
        return value
    if value.get(wire.SIGNATURE) == wire.SECRET:
        return {wire.SIGNATURE: wire.SECRET, "plaintext": json.dumps(crypter.decrypt(value["ciphertext"]))}
    return {key: _decrypted(one, crypter) for key, one in value.items()}


def _stack_import(given: argparse.Namespace) -> None:
    from .state import Snapshot

    place = _Place(given)
    name, crypter = place.stack(), place.crypter()
    record = json.loads(Path(given.file).read_bytes() if given.file else sys.stdin.read())
    with place.backend.locked(name):
        place.backend.save(name, Snapshot.from_json(record["deployment"], crypter), crypter)
    print("Import complete.")


def _state_unprotect(given: argparse.Namespace) -> None:
    place = _Place(given)
    name, crypter = place.stack(), place.crypter()
    with place.backend.locked(name):
        snapshot = place.backend.load(name, crypter)
        for one in snapshot.resources:
            if given.all or one.urn == given.urn:
                one.protect = False
        place.backend.save(name, snapshot, crypter)
    print("All resources unprotected" if given.all else "Resource unprotected")


def _cancel(given: argparse.Namespace) -> None:
    place = _Place(given)
    name = place.stack()
    place.backend.cancel(name)
    print(f"The currently running update for '{name.stack}' has been canceled!")


# --- configuration ----------------------------------------------------------------------------------------------------


def _config_show(given: argparse.Namespace) -> None:
    place = _Place(given)
    known = place.settings.plain(place.crypter())
    result = {key: _told_config(value, secret, given.show_secrets) for key, (value, secret) in known.items()}
    print(json.dumps(result, indent=2))


def _told_config(value: str, secret: bool, show: bool) -> dict[str, Any]:
    return {"secret": True} if secret and not show else {"value": value, "secret": secret}


def _config_get(given: argparse.Namespace) -> None:
    from .backend import BackendError

    place = _Place(given)
    known = place.settings.plain(place.crypter())
    key = _key(place, given.key)
    if key not in known:
        assert place.name is not None
        raise BackendError(f"configuration key '{given.key}' not found for stack '{place.name.stack}'")
    value, secret = known[key]
    print(json.dumps({"value": value, "secret": secret}) if given.json else value)


def _config_set(given: argparse.Namespace) -> None:
    _config_write(given, {given.key: given.value}, {given.key} if given.secret else set())


def _config_set_all(given: argparse.Namespace) -> None:
    values: dict[str, str] = {}
    secret: set[str] = set()
    for pairs, hidden in ((given.plaintext, False), (given.secret, True)):
        for pair in pairs:
            key, _, value = pair.partition("=")
            values[key] = value
            secret |= {key} if hidden else set()
    for key, result in json.loads(given.json or "{}").items():
        values[key] = str(result["value"])
        secret |= {key} if result.get("secret") else set()
    _config_write(given, values, secret)


def _config_write(given: argparse.Namespace, values: dict[str, str], secret: set[str]) -> None:
    place = _Place(given)
    crypter = place.crypter()
    new = {
        _key(place, key): {"secure": crypter.encrypt(value)} if key in secret else value
        for key, value in values.items()
    }
    place.settings.config = {**place.settings.config, **new}
    place.settings.save()


def _config_rm(given: argparse.Namespace) -> None:
    place = _Place(given)
    place.stack()
    gone = {_key(place, key) for key in given.keys}
    place.settings.config = {key: value for key, value in place.settings.config.items() if key not in gone}
    place.settings.save()


def _key(place: _Place, key: str) -> str:
    """Return the key, prefixed with the project's name if it has no namespace."""
    return key if ":" in key or place.project is None else f"{place.project.name}:{key}"


# --- updates ----------------------------------------------------------------------------------------------------------


def _operation(kind: str, given: argparse.Namespace) -> int:
    from .operations import Request, perform

    place = _Place(given)
    name = place.stack()
    request = Request(
        kind=kind,
        preview=given.preview_only,
        client=given.client,
        refresh=given.refresh,
        clear_pending_creates=given.clear_pending_creates,
        exclude_protected=given.exclude_protected,
        expect_no_changes=given.expect_no_changes,
        message=given.message,
        event_log=given.event_log,
        parallel=given.parallel,
    )
    if perform(place.backend, name, place.settings, place.crypter(), request):
        return 0
    print(f"error: {'preview' if request.preview else kind} failed", file=sys.stderr)
    return 255


# --- the parser -------------------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pulumi", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(required=True)

    def add(to: Any, name: str, run: Callable[[argparse.Namespace], Any], *flags: str, **options: Any) -> Any:
        command = to.add_parser(name, allow_abbrev=False)
        command.set_defaults(run=run)
        command.add_argument("--stack", "-s")
        command.add_argument("--cwd", "-C")
        command.add_argument("--config-file")
        command.add_argument("--color")
        for ignored in ("--non-interactive", "--yes", "--logflow", "--logtostderr", "--debug"):
            command.add_argument(ignored, action="store_true")
        command.add_argument("--verbose", "-v")
        for flag in flags:
            command.add_argument(flag, action="store_true")
        for option, default in options.items():
            command.add_argument(
                f"--{option.replace('_', '-')}", default=default, type=str if default is None else type(default)
            )
        return command

    add(commands, "version", _version)
    add(commands, "whoami", _whoami, "--json")
    add(commands, "cancel", _cancel).add_argument("name", nargs="?")
    plugin = commands.add_parser("plugin").add_subparsers(required=True)
    add(plugin, "ls", _no_plugins, "--json")
    _stack_commands(commands, add)
    _config_commands(commands, add)
    state = commands.add_parser("state").add_subparsers(required=True)
    add(state, "unprotect", _state_unprotect, "--all").add_argument("urn", nargs="?")
    for name, kind, preview in (
        ("up", "update", False),
        ("preview", "update", True),
        ("refresh", "refresh", False),
        ("destroy", "destroy", False),
    ):
        command = add(
            commands,
            name,
            functools.partial(_operation, kind),
            *("--skip-preview", "--refresh", "--clear-pending-creates", "--exclude-protected", "--expect-no-changes"),
            *("--diff", "--suppress-outputs", "--suppress-progress"),
            message="",
            event_log=None,
            client=None,
            exec_kind="",
            parallel=_DEFAULT_PARALLEL,
        )
        command.add_argument("--preview-only", action="store_true", default=preview)
    return parser


def _stack_commands(commands: Any, add: Callable[..., Any]) -> None:
    stack = commands.add_parser("stack").add_subparsers(required=True)
    add(stack, "init", _stack_init, "--no-select", secrets_provider="").add_argument("name", nargs="?")
    add(stack, "select", _stack_select).add_argument("name", nargs="?")
    add(stack, "ls", _stack_ls, "--json", "--all")
    add(stack, "rm", _stack_rm, "--force", "--preserve-config", "--remove-backups").add_argument("name", nargs="?")
    add(stack, "output", _stack_output, "--json", "--show-secrets")
    add(stack, "history", _stack_history, "--json", "--show-secrets", page_size=0, page=1)
    add(stack, "export", _stack_export, "--show-secrets")
    add(stack, "import", _stack_import, file=None)


def _config_commands(commands: Any, add: Callable[..., Any]) -> None:
    config = add(commands, "config", _config_show, "--json", "--show-secrets").add_subparsers()
    add(config, "get", _config_get, "--json").add_argument("key")
    change = add(config, "set", _config_set, "--secret", "--plaintext")
    change.add_argument("key")
    change.add_argument("value")
    every = add(config, "set-all", _config_set_all, json=None)
    every.add_argument("--plaintext", action="append", default=[])
    every.add_argument("--secret", action="append", default=[])
    add(config, "rm", _config_rm).add_argument("keys", nargs=1, metavar="key")
    add(config, "rm-all", _config_rm).add_argument("keys", nargs="*")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--non-interactive"]:  # the Automation API passes it first
        del sys.argv[1]
    sys.exit(main(sys.argv[1:]))
