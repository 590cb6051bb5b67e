"""Wrapper of Pulumi's Automation API: exclusive access to a stack, preview, update, destroy, recovery.

    with opened("infra-aws-us-east-1", backend, engine, say) as stack:
        stack.recover()                        # refresh; report what an interrupted run left
        changes = stack.preview(program)       # changes that up() would make
        outputs = stack.up(program)

Every operation can be killed at any time and retried: the engine records in the stack what it is about to create, and
recover() refreshes the stack from the cloud and clears such records.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import FrameType
from typing import Any, TypeVar

from pulumi import automation
from pulumi.automation._stack import StackInitMode
from pulumi.automation.errors import CommandError, ConcurrentUpdateError, StackNotFoundError

from ...provisioners.shared.locks import try_lock
from ..arguments import ArgumentError
from ..errors import BadRequestError, CancelledError, InfraError, LockedError
from .backend import Backend, environment, translate_bucket_error
from .events import Change, EventCollector, Step, kind_of, name_of
from .executable import Engine
from .locks import EngineRegistry, Lock, locks_in, verdict_of

Program = Callable[[], None]
_Result = TypeVar("_Result")

PROJECT = "cloudgpu"
"""Pulumi project of all stacks. It must never change: it is part of the resources' URNs in the state."""
_PARALLEL = 10
"""Number of resources processed concurrently: more would only hit the clouds' rate limits."""
_LOCK_TIMEOUT_S = 60.0
"""Seconds to wait for an earlier engine whose cloudgpu was killed: it finishes running operations, then exits."""
_POLL_S = 0.5
_TAKEN = re.compile(r"already ?(exist|owned)|Duplicate", re.I)
_HOW_IT_COMES = (
    "if an engine of yours was killed while it made that: delete it, and give the command again; "
    "otherwise the name is taken by another resource"
)


@dataclass(frozen=True, slots=True)
class ProgressCallbacks:
    """Callbacks for progress of a running stack operation."""

    step: Callable[[Step], object] = lambda _step: None
    remark: Callable[[str], object] = lambda _text: None
    doing: Callable[[str], object] = lambda _text: None
    """Called with the current activity, which replaces the previous one; "": idle."""


@dataclass(frozen=True, slots=True)
class Resource:
    """Cloud resource in a stack's state."""

    kind: str
    name: str
    id: str
    protected: bool


@dataclass(frozen=True, slots=True)
class Contents:
    """State of a stack as stored in its backend, without a query to the cloud."""

    resources: tuple[Resource, ...]
    pending: tuple[str, ...]
    """Names of resources whose creation was interrupted: they may exist."""
    outputs: Mapping[str, Any]


@contextlib.contextmanager
def opened(
    name: str, backend: Backend, engine: Engine, say: ProgressCallbacks, environ: Mapping[str, str] = os.environ
) -> Iterator[Stack]:
    """Open a stack, which need not exist yet, with an exclusive lock for this computer (context manager).

    The first Ctrl-C cancels the engine after running operations; the second kills it. Raises InfraError, LockedError.
    """
    folder = backend.folder(name)
    held = try_lock(folder / "lock")
    if held is None:
        hint = "wait for it to end, then run the command again"
        raise LockedError(f"another cloudgpu process of this computer works on {name}", hint)
    try:
        workspace = _Workspace(
            work_dir=str(folder),
            env_vars=environment(backend, environ),
            project_settings=automation.ProjectSettings(name=PROJECT, runtime="python"),
            pulumi_command=engine,
        )
        engine.engines = EngineRegistry(folder / "engines")
        stack = Stack(name, workspace, engine, say)
        with stack.cancellable():
            stack.find()
            try:
                yield stack
            finally:
                stack.leave()
    finally:
        engine.engines = None
        os.close(held)


class _Workspace(automation.LocalWorkspace):
    """Workspace that reads a stack's outputs with one engine run instead of two; no output is secret."""

    def stack_outputs(self, stack_name: str) -> automation.OutputMap:
        outputs = _contents(self.export_stack(stack_name).deployment or {}).outputs
        return {name: automation.OutputValue(value, secret=False) for name, value in outputs.items()}


class _Updated(automation.Stack):
    """Stack that skips the engine run with which the Automation API reads the update's summary from the history."""

    def info(self, show_secrets: bool = True) -> automation.UpdateSummary:  # noqa: ARG002 - the Automation API's signature
        return automation.UpdateSummary("update", datetime.now(UTC), "", {}, {}, "succeeded")


class Stack:
    """Open stack (see opened()). All methods raise InfraError with a single message for the user."""

    def __init__(self, name: str, workspace: automation.LocalWorkspace, engine: Engine, say: ProgressCallbacks) -> None:
        self.name = name
        self._workspace = workspace
        self._engine = engine
        self._say = say
        self._stack: automation.Stack | None = None
        self._contents: Contents | None = None
        """Cache of contents(), cleared by every change: each read starts the engine."""
        self._made = False
        """True from the creation of the stack by this object until up() runs: the stack is then empty."""
        self._cancelled = 0

    @property
    def backend(self) -> str:
        """URL of the backend."""
        return str(self._workspace.env_vars["PULUMI_BACKEND_URL"])

    @property
    def exists(self) -> bool:
        return self._stack is not None and not self._made

    def find(self) -> None:
        """Select the stack if it exists; otherwise no-op."""
        with contextlib.suppress(StackNotFoundError):
            self._stack = self._call_engine(
                lambda: _Updated(self.name, self._workspace, StackInitMode.SELECT), EventCollector()
            )

    def contents(self) -> Contents:
        """Return the stored state; empty if the stack does not exist."""
        if self._stack is None:
            return Contents((), (), {})
        if self._contents is None:
            exported = self._call_engine(lambda: self._workspace.export_stack(self.name), EventCollector())
            self._contents = _contents(exported.deployment or {})
        return self._contents

    def remark_interrupted(self) -> None:
        """Report resources that an interrupted run was creating; the engine's own preview does not."""
        for name in (pending := self.contents().pending):
            self._say.remark(f"an interrupted run was creating {name}: it may be there, and not in the stack")
        if pending:
            self._say.remark("`cloudgpu gc` shows what is tagged; `up` says which name is taken already")

    def recover(self) -> None:
        """Refresh the state from the cloud: missing resources are dropped, so up() recreates them."""
        if not self.exists:
            return
        self.remark_interrupted()
        self._say.doing("asking the cloud what there is")
        watch, it = EventCollector(), self._select_or_create()
        self._contents = None
        self._run(
            lambda: it.refresh(parallel=_PARALLEL, color="never", clear_pending_creates=True, on_event=watch), watch
        )

    def preview(self, program: Program, *, refresh: bool = False) -> list[Change]:
        """Return the changes that up() would make, compared to the stack's state.

        `refresh`: compare to the cloud's actual resources instead; the stack's state does not change.
        """
        self._say.doing("planning")
        watch = EventCollector()
        caught, it = _CapturingProgram(program), self._select_or_create()
        self._run(
            lambda: it.preview(
                parallel=_PARALLEL, color="never", program=caught, on_event=watch, refresh=refresh and self.exists
            ),
            watch,
            caught,
        )
        return [change for change in watch.changes if change.op != "refresh"]

    def up(self, program: Program) -> Mapping[str, Any]:
        """Create or update the resources; return the stack's outputs."""
        watch = EventCollector(self._say.step)
        caught, it = _CapturingProgram(program), self._select_or_create()
        self._made, self._contents = False, None
        result = self._run(
            lambda: it.up(parallel=_PARALLEL, color="never", program=caught, on_event=watch), watch, caught
        )
        return {name: output.value for name, output in result.outputs.items()}

    def preview_down(self, *, keep_protected: bool) -> list[Change]:
        self._say.doing("planning")
        watch, it = EventCollector(), self._select_or_create()
        self._run(
            lambda: it.preview_destroy(
                parallel=_PARALLEL, color="never", exclude_protected=keep_protected, on_event=watch
            ),
            watch,
        )
        return watch.changes

    def down(self, *, keep_protected: bool) -> Contents:
        """Delete the resources, except protected ones if `keep_protected`, and the stack if it is then empty.

        Return the remaining contents.
        """
        watch, it = EventCollector(self._say.step), self._select_or_create()
        self._contents = None
        self._run(
            lambda: it.destroy(parallel=_PARALLEL, color="never", exclude_protected=keep_protected, on_event=watch),
            watch,
        )
        left = self.contents()
        if not left.resources:
            self._remove()
        return left

    def leave(self) -> None:
        """Remove a stack that was created only for a preview; on an error an empty stack remains."""
        if self._made and self._stack is not None and not self._cancelled:
            with contextlib.suppress(InfraError):
                self._remove()

    # --- running the engine ---------------------------------------------------------------------------------------

    def _select_or_create(self) -> automation.Stack:
        if self._stack is None:
            self._stack = self._run(
                lambda: _Updated(self.name, self._workspace, StackInitMode.CREATE), EventCollector()
            )
            self._made = True
        return self._stack

    def _remove(self) -> None:
        """Remove the stack including the engine's backups of every update, which remove_stack() would leave."""
        self._run(
            lambda: self._command("stack", "rm", "--yes", "--remove-backups", "--stack", self.name), EventCollector()
        )
        self._stack = self._contents = None

    def _command(self, *words: str) -> object:
        """Run an engine command that the Automation API lacks."""
        return self._engine.run(list(words), self._workspace.work_dir, self._workspace.env_vars)

    def _run(
        self, call: Callable[[], _Result], watch: EventCollector, caught: _CapturingProgram | None = None
    ) -> _Result:
        """Run a call that may need the stack's lock; break or wait for a lock left by an earlier engine."""
        until = time.monotonic() + _LOCK_TIMEOUT_S
        while True:
            try:
                result = self._call_engine(call, watch, caught)
            except ConcurrentUpdateError:
                self._unlock(until)
            else:
                self._say.doing("")
                for text in watch.warnings:
                    self._say.remark(f"warning: {text}")
                return result

    def _unlock(self, until: float) -> None:
        """Break the lock of a killed engine of cloudgpu, or wait for one that is exiting. Raises LockedError for other
        locks."""
        text = self._engine.failed.stderr if self._engine.failed else ""
        engines = self._engine.engines
        locks = locks_in(text)
        if not locks or engines is None:
            raise LockedError(f"the stack {self.name} is locked: {_last_line(text)}", self._how_to_unlock())
        verdict = verdict_of(locks, engines)
        if verdict == "foreign":
            raise LockedError(f"another user works on the stack {self.name}: {_and(locks)}", self._how_to_unlock())
        if verdict == "alive":
            self._wait_for(locks, until)
            return
        self._say.remark(f"broke the lock of your earlier run, which was killed ({_and(locks)})")
        self._call_engine(lambda: self._command("cancel", "--yes", "--stack", self.name), EventCollector())
        for lock in locks:
            engines.ended(lock.pid)

    def _wait_for(self, locks: list[Lock], until: float) -> None:
        if time.monotonic() > until or self._cancelled:
            hint = f"wait for it, or end it (kill {locks[0].pid}), then run the command again"
            raise LockedError(f"an earlier run of yours still works on the stack {self.name}: {_and(locks)}", hint)
        self._say.doing(f"waiting for an earlier run of yours to end (process {locks[0].pid})")
        time.sleep(_POLL_S)

    def _how_to_unlock(self) -> str:
        return (
            "wait for it to end; if you know that it is dead: "
            f"PULUMI_BACKEND_URL={shlex.quote(self.backend)} pulumi cancel --stack organization/{PROJECT}/{self.name}"
        )

    def _call_engine(
        self, call: Callable[[], _Result], watch: EventCollector, caught: _CapturingProgram | None = None
    ) -> _Result:
        """Return the call's result; translate engine errors to InfraError.

        ConcurrentUpdateError and StackNotFoundError are not translated.
        """
        if self._cancelled:  # cancelled between two engine runs
            raise CancelledError(*self._how_to_go_on())
        try:
            return call()
        except (ConcurrentUpdateError, StackNotFoundError):
            raise
        except CommandError as error:
            if self._cancelled:
                raise CancelledError(*self._how_to_go_on()) from None
            if caught is not None and caught.error is not None:
                raise caught.error from None
            why = _why(watch, self._engine)
            known = translate_bucket_error(self.backend, why)
            raise known or InfraError(why, _HOW_IT_COMES if _TAKEN.search(why) else "") from error

    # --- Ctrl-C -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def cancellable(self) -> Iterator[None]:
        """Forward Ctrl-C and SIGTERM to the engine (context manager). No-op outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self._interrupt) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if not self._engine.running:  # no engine runs: a prompt, or cloudgpu's own code
            raise KeyboardInterrupt
        self._cancelled += 1
        if self._cancelled == 1:
            self._engine.cancel()
            self._say.remark("stopping: what is under way is finished first (Ctrl-C again kills it)")
        else:
            self._engine.kill()

    def _how_to_go_on(self) -> tuple[str, str]:
        killed = " in the middle" if self._cancelled > 1 else ""
        return (
            f"stopped{killed}: what was done until then is kept in the stack {self.name}",
            "the same command again goes on from there; `down` removes it",
        )


class _CapturingProgram:
    """Wrapper that keeps a program's exception: the engine reports it only as text with a traceback."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.error: Exception | None = None

    def __call__(self) -> None:
        from pulumi import RunError

        try:
            self._program()
        except Exception as error:
            self.error = BadRequestError(str(error)) if isinstance(error, ArgumentError) else error
            raise RunError(str(error)) from error


def _contents(deployment: Mapping[str, Any]) -> Contents:
    """Return the contents of a stack from `deployment` in the JSON of `pulumi stack export`."""
    resources, outputs = [], {}
    for one in deployment.get("resources") or ():
        if one["type"] == "pulumi:pulumi:Stack":
            outputs = dict(one.get("outputs") or {})
        elif one.get("custom") and not one["type"].startswith("pulumi:") and not one.get("delete"):
            resources.append(
                Resource(one["type"], name_of(one["urn"]), str(one.get("id", "")), bool(one.get("protect")))
            )
    creating = [one for one in deployment.get("pending_operations") or () if one.get("type") == "creating"]
    pending = [f"{name_of(one['resource']['urn'])} ({kind_of(one['resource']['urn'])})" for one in creating]
    return Contents(tuple(resources), tuple(pending), outputs)


def _why(watch: EventCollector, engine: Engine) -> str:
    """Return the engine's errors: of resources, otherwise of the whole run, otherwise its last output."""
    errors = watch.errors or watch.run_errors
    if errors:
        return "\n".join(dict.fromkeys(errors))
    failed = engine.failed
    return _last_line(f"{failed.stdout}\n{failed.stderr}") if failed else "the engine failed, and did not say why"


def _last_line(text: str) -> str:
    """Return the last error line of the engine's output, otherwise its last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error:")]
    return (errors or lines or ["the engine did not say why"])[-1].removeprefix("error:").strip()


def _and(locks: list[Lock]) -> str:
    return "; ".join(map(str, locks))
