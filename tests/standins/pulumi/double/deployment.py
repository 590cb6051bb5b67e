"""An update: the operations on resources, and their order. Modelled on pulumi/pulumi, pkg/resource/deploy.

A registration is checked, compared with the state, and created, updated, replaced or left unchanged, in the thread of
the program's call; calls run concurrently as far as dependencies permit. After the program has succeeded, resources
that it did not register are deleted in reverse order. The first failure ends the update: running operations continue,
no others start, nothing is deleted, and resources that were not reached keep their state.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .. import wire
from ..wire import Props
from .backend import Name
from .events import Events
from .goals import Goal, ignoring, urn_of
from .plugins import Difference, InitError, OperationError, Plugin, PluginError, Plugins
from .state import PROVIDER_PREFIX, STACK_TYPE, Pending, Resource, Snapshot, now


class StoppedError(Exception):
    """The update has failed or was cancelled; no operation may start."""


@dataclass(frozen=True)
class Update:
    """Parameters of a deployment."""

    stack: Name
    preview: bool
    plugins: Plugins
    events: Events
    save: Callable[[Snapshot], None]
    """Writes the state."""
    config: Mapping[str, str]
    """Configuration by full key: `aws:region`."""
    parallel: int


class Deployment:
    """Deployment of one update, preview, refresh or destroy."""

    def __init__(self, update: Update, snapshot: Snapshot) -> None:
        self._update, self._events = update, update.events
        self._lock = threading.RLock()
        self._settled = threading.Condition()
        self._calls = 0
        """Number of the program's calls in progress."""
        self._slots = threading.Semaphore(update.parallel)
        self._olds = list(snapshot.resources)
        self._news: list[Resource] = []
        self._done: set[Resource] = set()
        """Old resources that have a new state or are gone."""
        self._pending = [one for one in snapshot.pending if one.kind == "creating"]
        self._registered: dict[str, Resource | None] = {}
        self._configured: dict[str, Plugin] = {}
        """Configured plugins by URN of the provider."""
        self._providers = threading.Lock()
        self.failed = self.cancelled = False
        self.engine = ""
        """Address of the services; "" until they run."""

    # --- state --------------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        with self._lock:
            rest = [one for one in self._olds if one not in self._done]
            return Snapshot([*self._news, *rest], list(self._pending))

    def outputs(self) -> Props:
        """Return the stack's current outputs."""
        found = [one for one in self.snapshot().resources if one.type == STACK_TYPE]
        return found[0].outputs if found else {}

    def _save(self) -> None:
        if not self._update.preview:
            with self._lock:
                self._update.save(self.snapshot())

    def _keep(self, new: Resource, *olds: Resource | None) -> None:
        """Replace the old resources by the new one in the state."""
        with self._lock:
            self._done |= {one for one in olds if one is not None}
            self._news.append(new)
            self._save()

    def _drop(self, old: Resource) -> None:
        with self._lock:
            self._done.add(old)
            self._save()

    def _old(self, urns: list[str]) -> Resource | None:
        """Return the old resource with the first of these URNs that exists, except those that are to be deleted."""
        for urn in urns:
            for one in self._olds:
                if one.urn == urn and not one.delete and one not in self._done:
                    return one
        return None

    def _left(self) -> list[Resource]:
        """Return the old resources without a decision yet, last first."""
        return [one for one in reversed(self._olds) if one not in self._done]

    # --- failing ------------------------------------------------------------------------------------------------------

    def fail(self, text: str, urn: str = "") -> StoppedError:
        """Report a failure and stop further operations; return the exception to raise."""
        self.failed = True
        self._events.diagnostic(text, urn=urn)
        return StoppedError(text)

    def cancel(self) -> None:
        """Cancel the update. Called from a signal handler."""
        self.cancelled = True
        threading.Thread(target=self._update.plugins.cancel, daemon=True).start()

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Count a call of the program as in progress for the duration of the block."""
        with self._settled:
            self._calls += 1
        try:
            yield
        finally:
            with self._settled:
                self._calls -= 1
                self._settled.notify_all()

    def settle(self) -> None:
        """Wait for running calls, even if the program no longer waits for them."""
        with self._settled:
            self._settled.wait_for(lambda: not self._calls)

    def _check_open(self) -> None:
        if self.failed or self.cancelled:
            raise StoppedError("the update is over")

    # --- registrations ------------------------------------------------------------------------------------------------

    def register(self, goal: Goal) -> Resource:
        """Register a resource; return its new state. Raises StoppedError."""
        self._check_open()
        with self._lock:
            if goal.urn in self._registered:
                raise self.fail(f"Duplicate resource URN '{goal.urn}'; try giving it a unique name", goal.urn)
            self._registered[goal.urn] = None
        made = self._register(goal)
        self._registered[goal.urn] = made
        return made

    def _register(self, goal: Goal) -> Resource:
        old = self._old([goal.urn, *goal.aliases])
        new = _wanted(goal, old)
        if not goal.custom:
            new.outputs = old.outputs if old and goal.type == STACK_TYPE else {}
            self._do("create" if old is None else "same", old, new, lambda: None)
            return new
        if goal.type.startswith(PROVIDER_PREFIX):
            return self._register_provider(goal, old, new)
        new.provider = goal.provider or self._default_provider(goal)
        plugin = self._plugin(new.provider)
        inputs = ignoring(goal.inputs, old.inputs, goal.ignore_changes) if old is not None else goal.inputs
        new.inputs = self._checked(plugin, goal, old, inputs)
        return self._apply(plugin, goal, old, new)

    def _checked(self, plugin: Plugin, goal: Goal, old: Resource | None, inputs: Props) -> Props:
        before = old.inputs if old is not None else {}
        try:
            checked, failures = plugin.check(goal.at, before, inputs, _seed(goal.urn))
        except OperationError as error:
            raise self.fail(str(error), goal.urn) from error
        for name, reason in failures:
            where = f"resource '{goal.name}'" + (f"'s property '{name}'" if name else "")
            self.fail(f"{goal.type} {where} has a problem: {reason}", goal.urn)
        self._check_open()
        return checked

    def _apply(self, plugin: Plugin, goal: Goal, old: Resource | None, new: Resource) -> Resource:
        if old is None:
            return self._create("create", plugin, goal, None, new)
        if old.pending_replacement or old.external:
            return self._create("create-replacement", plugin, goal, old, new)
        difference = self._difference(plugin, goal, old, new)
        if difference.replaces:
            # Check again without the old inputs, so that a replacement gets new auto-generated names.
            inputs = ignoring(goal.inputs, old.inputs, goal.ignore_changes)
            new.inputs = self._checked(plugin, goal, None, inputs)
            return self._replace(plugin, goal, old, new, difference)
        if difference.changed or old.init_errors:
            return self._change(plugin, goal, old, new, difference)
        new.id, new.outputs = old.id, old.outputs
        self._do("same", old, new, lambda: None)
        return new

    def _difference(self, plugin: Plugin, goal: Goal, old: Resource, new: Resource) -> Difference:
        try:
            found = plugin.diff(goal.at, old.id, (old.inputs, old.outputs), new.inputs, goal.ignore_changes)
        except OperationError as error:
            raise self.fail(str(error), goal.urn) from error
        changed = [*found.diffs, *found.detailed]
        forced = [path for path in goal.replace_on_changes if found.changed and any(map(_within(path), changed))]
        return replace(found, replaces=sorted({*found.replaces, *forced}))

    def _create(
        self,
        op: str,
        plugin: Plugin,
        goal: Goal,
        old: Resource | None,
        new: Resource,
        *,
        replaced: Resource | None = None,
    ) -> Resource:
        """Create a resource. `replaced`: the old resource, marked for deletion at the end once the new one exists."""

        def perform() -> None:
            try:
                new.id, outputs = plugin.create(goal.at, new.inputs, preview=self._update.preview)
            except InitError:  # the resource exists
                if replaced is not None:
                    replaced.delete = True
                raise
            new.outputs = wire.with_secrets(outputs, goal.additional_secret_outputs)
            if replaced is not None:
                replaced.delete = True

        new.created = new.modified = now()
        self._do(op, old, new, perform, pending="creating")
        return new

    def _change(self, plugin: Plugin, goal: Goal, old: Resource, new: Resource, difference: Difference) -> Resource:
        def perform() -> None:
            outputs = plugin.update(
                goal.at,
                old.id,
                (old.inputs, old.outputs),
                new.inputs,
                goal.ignore_changes,
                preview=self._update.preview,
            )
            new.outputs = wire.with_secrets(outputs, goal.additional_secret_outputs)

        new.id, new.modified = old.id, now()
        self._do("update", old, new, perform, pending="updating", difference=difference)
        return new

    def _replace(self, plugin: Plugin, goal: Goal, old: Resource, new: Resource, difference: Difference) -> Resource:
        if goal.protect and old.protect:
            raise self.fail(
                f'unable to replace resource "{goal.urn}"\nas it is currently marked for protection. To unprotect the '
                "resource, remove the `protect` flag from the resource in your Pulumi program and run `pulumi up`",
                goal.urn,
            )
        first = goal.delete_before_replace if goal.delete_before_replace is not None else difference.deletes_first
        if first:
            for one in [*reversed(self._dependents(old)), old]:
                self._delete("delete-replaced", one)
        self._events.before("replace", old, new, difference)
        self._events.after("replace", old, new, difference)
        if first:
            return self._create("create-replacement", plugin, goal, old, new)
        return self._create("create-replacement", plugin, goal, None, new, replaced=old)

    def _dependents(self, root: Resource) -> list[Resource]:
        """Return the resources that must be replaced when the root's outputs change, nearest first."""
        gone, found = {root.urn}, []
        for one in self._olds:
            touched = [name for name, urns in one.property_dependencies.items() if gone & set(urns)]
            if one in self._done or one.delete or not touched:
                continue
            at = {"urn": one.urn, "type": one.type, "name": one.name}
            inputs = {**one.inputs, **dict.fromkeys(touched, wire.UNKNOWN)}
            if self._plugin(one.provider).diff(at, one.id, (one.inputs, one.outputs), inputs, []).replaces:
                gone.add(one.urn)
                found.append(one)
        return found

    def register_outputs(self, urn: str, outputs: Props) -> None:
        """Set the outputs of a component or of the stack."""
        self._check_open()
        made = self._registered.get(urn)
        if made is None:
            raise self.fail(f"outputs of {urn}, which is not registered", urn)
        made.outputs = wire.without_outputs(outputs)
        self._save()

    def read(self, goal: Goal, identity: str) -> Resource:
        """Read an existing resource. Raises StoppedError."""
        self._check_open()
        with self._lock:
            if goal.urn in self._registered:
                raise self.fail(f"Duplicate resource URN '{goal.urn}'; try giving it a unique name", goal.urn)
        old = self._old([goal.urn])
        new = replace(_wanted(goal, old), external=True, id=identity)
        new.provider = goal.provider or self._default_provider(goal)
        plugin = self._plugin(new.provider)

        def perform() -> None:
            found, _inputs, new.outputs = plugin.read(goal.at, identity, {}, new.inputs)
            if not found:
                raise OperationError(f"resource '{identity}' does not exist")

        self._do("read", old, new, perform, pending="reading")
        self._registered[goal.urn] = new
        return new

    def invoke(self, token: str, arguments: Any, provider: str, version: str) -> Any:
        """Call a provider's function; return its result. Raises OperationError, StoppedError."""
        self._check_open()
        package = token.split(":", maxsplit=1)[0]
        known = provider or self._default(package, version)
        return self._plugin(known).invoke(token, arguments, preview=self._update.preview)

    # --- providers ----------------------------------------------------------------------------------------------------

    def _default_provider(self, goal: Goal) -> str:
        return self._default(goal.type.split(":")[0], goal.version)

    def _default(self, package: str, version: str) -> str:
        """Return the reference of a package's default provider, which the stack's configuration configures."""
        name = "default" + (f"_{version}".replace(".", "_").replace("-", "_") if version else "")
        urn = urn_of(self._update.stack, "", f"{PROVIDER_PREFIX}{package}", name)
        with self._providers:
            made = self._registered.get(urn)
            if made is None:
                config = {
                    key.partition(":")[2]: value
                    for key, value in self._update.config.items()
                    if key.startswith(f"{package}:")
                }
                inputs = {**config, **({"version": version} if version else {})}
                old = self._old([urn])
                made = Resource(urn, custom=True, type=f"{PROVIDER_PREFIX}{package}", inputs=inputs, outputs=inputs)
                made.id = old.id if old is not None else str(uuid.uuid4())
                self._configure(made)
                self._registered[urn] = made
                self._keep(made, old)
        return f"{made.urn}::{made.id}"

    def _register_provider(self, goal: Goal, old: Resource | None, new: Resource) -> Resource:
        new.inputs = {**goal.inputs, **({"version": goal.version} if goal.version else {})}
        new.id = old.id if old is not None else str(uuid.uuid4())
        new.outputs = new.inputs
        op = "create" if old is None else "same" if wire.plain(old.inputs) == wire.plain(new.inputs) else "update"
        self._do(op, old, new, lambda: self._configure(new))
        return new

    def _plugin(self, reference: str) -> Plugin:
        """Return the configured plugin of a provider reference `urn::id`. Raises StoppedError."""
        urn = reference.rpartition("::")[0]
        with self._providers:
            if urn not in self._configured:
                known = [one for one in self.snapshot().resources if one.urn == urn]
                if not known:
                    raise self.fail(f"unknown provider '{reference}'")
                self._configure(known[0])
            return self._configured[urn]

    def _configure(self, provider: Resource) -> None:
        package = provider.type.removeprefix(PROVIDER_PREFIX)
        try:
            plugin = self._update.plugins.of(package)
            plugin.configure(provider.urn, provider.id, provider.inputs)
        except (PluginError, OperationError) as error:
            raise self.fail(str(error), provider.urn) from error
        self._configured[provider.urn] = plugin

    # --- deletion and refresh
    # ---------------------------------------------------------------------------------------------

    def delete_unregistered(self) -> None:
        """Delete replaced resources, and resources that the program no longer registers. Raises StoppedError."""
        for one in self._left():
            if one.delete:
                self._delete("delete-replaced", one)
            elif one.urn not in self._registered:
                self._delete("delete", one)

    def destroy(self, *, exclude_protected: bool = False) -> None:
        """Delete all resources, last first. Raises StoppedError."""
        kept = _protected(self._olds) if exclude_protected else set()
        for one in self._left():
            if one.urn not in kept:
                self._delete("delete-replaced" if one.delete else "delete", one)

    def _delete(self, op: str, old: Resource) -> None:
        if old.is_default_provider:
            self._drop(old)
            return
        if op == "delete" and old.protect:
            raise self.fail(
                f'resource "{old.urn}" cannot be deleted\nbecause it is protected. To unprotect the resource, either '
                "remove the `protect` flag from the resource in your Pulumi program and run `pulumi up`, or use the "
                f"command:\n`pulumi state unprotect '{old.urn}'`",
                old.urn,
            )
        replaced_first = op == "delete-replaced" and not old.delete
        going = {one.urn for one in self._left() if one.urn not in self._registered}

        def perform() -> None:
            if self._update.preview or old.pending_replacement or old.external or not old.custom or old.is_provider:
                return
            if not old.retain_on_delete and old.deleted_with not in going:
                at = {"urn": old.urn, "type": old.type, "name": old.name}
                self._plugin(old.provider).delete(at, old.id, old.inputs, old.outputs)

        self._do(op, old, None, perform, pending="deleting", drop=not replaced_first)
        if replaced_first:
            old.pending_replacement = True
            self._save()

    def refresh(self, *, counted: bool) -> None:
        """Read all resources and drop those that no longer exist. Raises StoppedError. `counted`: the summary counts
        the results."""
        for one in list(self._olds):
            if not one.is_default_provider:
                result = self._refresh(one)
                self._events.counts[result] += counted
        there = {one.urn for one in self.snapshot().resources}
        for one in self._olds:
            one.dependencies = [urn for urn in one.dependencies if urn in there]
            one.property_dependencies = {
                name: [urn for urn in urns if urn in there] for name, urns in one.property_dependencies.items()
            }
        self._save()

    def _refresh(self, old: Resource) -> str:
        """Refresh one resource; return the result as an operation."""
        if not old.custom or old.is_provider or old.external or old.pending_replacement:  # no provider call is needed
            self._do("refresh", old, old, lambda: None, keep=False)
            return "same"
        plugin = self._plugin(old.provider)
        new = replace(old)
        found = ""

        def perform() -> None:
            nonlocal found
            at = {"urn": old.urn, "type": old.type, "name": old.name}
            found, inputs, outputs = plugin.read(at, old.id, old.inputs, old.outputs)
            if found:
                new.inputs, new.outputs, new.init_errors = inputs or old.inputs, outputs, []

        self._do("refresh", old, new, perform, keep=False)
        changed = wire.plain([new.inputs, new.outputs]) != wire.plain([old.inputs, old.outputs])
        if not found:
            self._drop(old)
            return "delete"
        old.inputs, old.outputs, old.init_errors = new.inputs, new.outputs, new.init_errors
        return "update" if changed else "same"

    # --- steps
    # ------------------------------------------------------------------------------------------------------------

    def _do(
        self,
        op: str,
        old: Resource | None,
        new: Resource | None,
        perform: Callable[[], None],
        *,
        pending: str = "",
        difference: Difference | None = None,
        keep: bool = True,
        drop: bool = True,
    ) -> None:
        """Run one step: record it as pending, perform it, save the result, and send events. Raises StoppedError."""
        self._check_open()
        self._events.before(op, old, new, difference)
        one = new or old
        assert one is not None
        with self._slots, self._begun(Pending(one, pending)):
            try:
                self._check_open()
                perform()
            except InitError as error:
                assert new is not None
                new.id, new.outputs, new.init_errors = error.id, error.outputs, error.reasons
                self._keep(new, old)
                self._fail_step(op, old, new, error)
            except OperationError as error:
                self._fail_step(op, old, new, error)
            if new is not None and keep:
                self._keep(new, old)
            elif new is None and old is not None and drop:
                self._drop(old)
        self._events.after(op, old, new, difference)

    def _fail_step(self, op: str, old: Resource | None, new: Resource | None, error: OperationError) -> None:
        self.failed = True
        self._events.failed(op, old, new, str(error))
        raise StoppedError(str(error)) from error

    @contextlib.contextmanager
    def _begun(self, pending: Pending) -> Iterator[None]:
        """Keep the pending operation in the state for the duration of the block."""
        if not pending.kind:
            yield
            return
        with self._lock:
            self._pending.append(pending)
            self._save()
        try:
            yield
        finally:
            with self._lock:
                self._pending.remove(pending)
                self._save()


def _within(path: str) -> Callable[[str], bool]:
    """Return a predicate that is true for this path and those below it; `*` matches all."""
    return lambda other: path in ("*", other) or other.startswith((f"{path}.", f"{path}["))


def _wanted(goal: Goal, old: Resource | None) -> Resource:
    return Resource(
        urn=goal.urn,
        custom=goal.custom,
        type=goal.type,
        inputs=goal.inputs,
        parent=goal.parent,
        dependencies=goal.dependencies,
        property_dependencies=goal.property_dependencies,
        protect=goal.protect,
        retain_on_delete=goal.retain_on_delete,
        deleted_with=goal.deleted_with,
        additional_secret_outputs=goal.additional_secret_outputs,
        created=old.created if old is not None else "",
        modified=old.modified if old is not None else "",
    )


def _protected(resources: list[Resource]) -> set[str]:
    """Return the URNs of protected resources and of everything that they depend on."""
    kept: set[str] = set()
    for one in reversed(resources):
        if one.protect or one.urn in kept:
            kept |= {one.urn, *one.needs()}
    return kept


def _seed(urn: str) -> bytes:
    """Return a random seed for the names that providers generate."""
    return urn.encode() + secrets.token_bytes(16)
