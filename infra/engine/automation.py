"""Pulumi's Automation API as a stack is worked on here: held alone, looked at, brought up, taken down.

    with opened("infra-aws-us-east-1", backend, engine, say) as stack:
        stack.recover()                        # what the cloud has, what an interrupted run left
        changes = stack.preview(program)       # what up would do
        outputs = stack.up(program)

Whatever is killed, and whenever: the same again goes on from there. The engine notes in the stack what it is about to
create; recover() asks the cloud about everything in the stack, and drops such notes.
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
from .backend import Backend, environment, explained
from .events import Change, Step, Watch, kind_of, name_of
from .executable import Engine
from .locks import Engines, Lock, locks_in, verdict_of

Program = Callable[[], None]
_Result = TypeVar("_Result")

PROJECT = "cloudgpu"
"""Of every stack; part of its resources' names in the state, so never to be changed."""
_PARALLEL = 10
"""Resources worked on at once: more only waits for the clouds' rate limits."""
_PATIENCE_S = 60.0
"""For an engine of ours whose cloudgpu was killed: it ends what is under way, then itself."""
_LOOK_EVERY_S = 0.5
_TAKEN = re.compile(r"already ?(exist|owned)|Duplicate", re.I)
_HOW_IT_COMES = (
    "if an engine of yours was killed while it made that: delete it, and give the command again; "
    "else somebody else's has the name"
)


@dataclass(frozen=True, slots=True)
class Say:
    """How whoever runs a stack is told of it, while it runs."""

    step: Callable[[Step], object] = lambda _step: None
    remark: Callable[[str], object] = lambda _text: None
    doing: Callable[[str], object] = lambda _text: None
    """What it is busy with, rewritten in place; "": nothing any more."""


@dataclass(frozen=True, slots=True)
class Resource:
    """What a stack has of the cloud."""

    kind: str
    name: str
    id: str
    protected: bool


@dataclass(frozen=True, slots=True)
class Contents:
    """A stack as it is remembered; nobody asks the cloud."""

    resources: tuple[Resource, ...]
    pending: tuple[str, ...]
    """Names of resources whose creation was interrupted: they may be there."""
    outputs: Mapping[str, Any]


@contextlib.contextmanager
def opened(
    name: str, backend: Backend, engine: Engine, say: Say, environ: Mapping[str, str] = os.environ
) -> Iterator[Stack]:
    """The stack of this name, which may not be there yet, for nobody else of this computer to work on meanwhile.

    Ctrl-C asks the engine to finish what is under way; again, it kills it. Raises InfraError.
    """
    folder = backend.folder(name)
    held = try_lock(folder / "lock")
    if held is None:
        hint = "wait for it to end, then run the command again"
        raise LockedError(f"another cloudgpu of this computer works on {name}", hint)
    try:
        workspace = _Workspace(
            work_dir=str(folder),
            env_vars=environment(backend, environ),
            project_settings=automation.ProjectSettings(name=PROJECT, runtime="python"),
            pulumi_command=engine,
        )
        engine.engines = Engines(folder / "engines")
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
    """A workspace that starts the engine once to read a stack's outputs, of which none is secret."""

    def stack_outputs(self, stack_name: str) -> automation.OutputMap:
        outputs = _contents(self.export_stack(stack_name).deployment or {}).outputs
        return {name: automation.OutputValue(value, secret=False) for name, value in outputs.items()}


class _Updated(automation.Stack):
    """A stack whose updates do not start the engine once more to read from its history how they went."""

    def info(self, show_secrets: bool = True) -> automation.UpdateSummary:  # noqa: ARG002 - as the Automation API has it
        return automation.UpdateSummary("update", datetime.now(UTC), "", {}, {}, "succeeded")


class Stack:
    """One stack that is held (see opened()). Every method raises InfraError, with one message for the user."""

    def __init__(self, name: str, workspace: automation.LocalWorkspace, engine: Engine, say: Say) -> None:
        self.name = name
        self._workspace = workspace
        self._engine = engine
        self._say = say
        self._stack: automation.Stack | None = None
        self._contents: Contents | None = None
        """Cache of contents(), emptied by every change: each read starts the engine."""
        self._made = False
        """It was not there before, and nothing was brought up in it yet."""
        self._cancelled = 0

    @property
    def backend(self) -> str:
        """URL of where it is kept."""
        return str(self._workspace.env_vars["PULUMI_BACKEND_URL"])

    @property
    def exists(self) -> bool:
        return self._stack is not None and not self._made

    def find(self) -> None:
        """Look whether it is there."""
        with contextlib.suppress(StackNotFoundError):
            self._stack = self._told(lambda: _Updated(self.name, self._workspace, StackInitMode.SELECT), Watch())

    def contents(self) -> Contents:
        """Of a stack that is not there: nothing."""
        if self._stack is None:
            return Contents((), (), {})
        if self._contents is None:
            exported = self._told(lambda: self._workspace.export_stack(self.name), Watch())
            self._contents = _contents(exported.deployment or {})
        return self._contents

    def remark_interrupted(self) -> None:
        """Remark on what an interrupted run was creating; a preview of the engine's own does not."""
        for name in (pending := self.contents().pending):
            self._say.remark(f"an interrupted run was creating {name}: it may be there, and not in the stack")
        if pending:
            self._say.remark("`cloudgpu gc` shows what is tagged; `up` says which name is taken already")

    def recover(self) -> None:
        """Compare the stack with the cloud: what is gone is forgotten, so up() makes it again."""
        if not self.exists:
            return
        self.remark_interrupted()
        self._say.doing("asking the cloud what there is")
        watch, it = Watch(), self._there()
        self._contents = None
        self._run(
            lambda: it.refresh(parallel=_PARALLEL, color="never", clear_pending_creates=True, on_event=watch), watch
        )

    def preview(self, program: Program, *, refresh: bool = False) -> list[Change]:
        """Return what up() would do to things in the cloud, by the stack's state.

        `refresh`: by what the cloud has instead. The stack's state stays as it is.
        """
        self._say.doing("planning")
        watch = Watch()
        caught, it = _Caught(program), self._there()
        self._run(
            lambda: it.preview(
                parallel=_PARALLEL, color="never", program=caught, on_event=watch, refresh=refresh and self.exists
            ),
            watch,
            caught,
        )
        return [change for change in watch.changes if change.op != "refresh"]

    def up(self, program: Program) -> Mapping[str, Any]:
        """Bring it up; its outputs."""
        watch = Watch(self._say.step)
        caught, it = _Caught(program), self._there()
        self._made, self._contents = False, None
        result = self._run(
            lambda: it.up(parallel=_PARALLEL, color="never", program=caught, on_event=watch), watch, caught
        )
        return {name: output.value for name, output in result.outputs.items()}

    def preview_down(self, *, keep_protected: bool) -> list[Change]:
        self._say.doing("planning")
        watch, it = Watch(), self._there()
        self._run(
            lambda: it.preview_destroy(
                parallel=_PARALLEL, color="never", exclude_protected=keep_protected, on_event=watch
            ),
            watch,
        )
        return watch.changes

    def down(self, *, keep_protected: bool) -> Contents:
        """Remove all that is in it, but for what is protected (`keep_protected`), and the stack if it is then empty.

        What is left in it.
        """
        watch, it = Watch(self._say.step), self._there()
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
        """A stack that was made only to look what would be done is removed again; if it cannot be, it is left empty."""
        if self._made and self._stack is not None and not self._cancelled:
            with contextlib.suppress(InfraError):
                self._remove()

    # --- running the engine ---------------------------------------------------------------------------------------

    def _there(self) -> automation.Stack:
        if self._stack is None:
            self._stack = self._run(lambda: _Updated(self.name, self._workspace, StackInitMode.CREATE), Watch())
            self._made = True
        return self._stack

    def _remove(self) -> None:
        """Remove the stack with the backups that the engine keeps of every update, which remove_stack() would leave."""
        self._run(lambda: self._command("stack", "rm", "--yes", "--remove-backups", "--stack", self.name), Watch())
        self._stack = self._contents = None

    def _command(self, *words: str) -> object:
        """Run a command of the engine that the Automation API does not have."""
        return self._engine.run(list(words), self._workspace.work_dir, self._workspace.env_vars)

    def _run(self, call: Callable[[], _Result], watch: Watch, caught: _Caught | None = None) -> _Result:
        """A call that may need the stack's lock, which a dead engine of ours may have left."""
        until = time.monotonic() + _PATIENCE_S
        while True:
            try:
                result = self._told(call, watch, caught)
            except ConcurrentUpdateError:
                self._unlock(until)
            else:
                self._say.doing("")
                for text in watch.warnings:
                    self._say.remark(f"warning: {text}")
                return result

    def _unlock(self, until: float) -> None:
        """Break the lock of a dead engine of ours, or wait for one that is ending. Raises LockedError for any other."""
        text = self._engine.failed.stderr if self._engine.failed else ""
        engines = self._engine.engines
        locks = locks_in(text)
        if not locks or engines is None:
            raise LockedError(f"the stack {self.name} is locked: {_last_line(text)}", self._how_to_unlock())
        verdict = verdict_of(locks, engines)
        if verdict == "foreign":
            raise LockedError(f"somebody works on the stack {self.name}: {_and(locks)}", self._how_to_unlock())
        if verdict == "alive":
            self._wait_for(locks, until)
            return
        self._say.remark(f"broke the lock of a run of yours that was killed ({_and(locks)})")
        self._told(lambda: self._command("cancel", "--yes", "--stack", self.name), Watch())
        for lock in locks:
            engines.ended(lock.pid)

    def _wait_for(self, locks: list[Lock], until: float) -> None:
        if time.monotonic() > until or self._cancelled:
            hint = f"wait for it, or end it (kill {locks[0].pid}), then run the command again"
            raise LockedError(f"an earlier run of yours still works on the stack {self.name}: {_and(locks)}", hint)
        self._say.doing(f"waiting for an earlier run of yours to end (process {locks[0].pid})")
        time.sleep(_LOOK_EVERY_S)

    def _how_to_unlock(self) -> str:
        return (
            "wait for it to end; if you know that it is dead: "
            f"PULUMI_BACKEND_URL={shlex.quote(self.backend)} pulumi cancel --stack organization/{PROJECT}/{self.name}"
        )

    def _told(self, call: Callable[[], _Result], watch: Watch, caught: _Caught | None = None) -> _Result:
        """Its result; an error of the engine's as one message. ConcurrentUpdateError and StackNotFoundError pass."""
        if self._cancelled:  # too late for what ran then
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
            known = explained(self.backend, why)
            raise known or InfraError(why, _HOW_IT_COMES if _TAKEN.search(why) else "") from error

    # --- Ctrl-C -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def cancellable(self) -> Iterator[None]:
        """While it is held, Ctrl-C and SIGTERM go to the engine. Signals are the main thread's; elsewhere: nothing."""
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
        if not self._engine.running:  # a question, or a step of our own
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


class _Caught:
    """A program whose own exception is kept: the engine would tell of it as text, with a traceback."""

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
    """Of the JSON that `pulumi stack export` prints under `deployment`."""
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


def _why(watch: Watch, engine: Engine) -> str:
    """The engine's errors: those of resources, else of the whole run, else what it wrote at last."""
    errors = watch.errors or watch.whole
    if errors:
        return "\n".join(dict.fromkeys(errors))
    failed = engine.failed
    return _last_line(f"{failed.stdout}\n{failed.stderr}") if failed else "the engine failed, and did not say why"


def _last_line(text: str) -> str:
    """The engine's last error as it stands in what it wrote."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error:")]
    return (errors or lines or ["the engine did not say why"])[-1].removeprefix("error:").strip()


def _and(locks: list[Lock]) -> str:
    return "; ".join(map(str, locks))
