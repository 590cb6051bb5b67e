"""Execution of a program as by `python train.py` or `python -m pkg.train`: same `__main__`, arguments and exit code.

Only the exit code after an unhandled exception differs: 70 if a retry would fail again.
"""

from __future__ import annotations

import builtins
import os
import runpy
import signal
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from ...checkpoint.errors import EXIT_USER, CheckpointError
from ...checkpoint.outcome import Outcome, OutcomeRecord

EXIT_ERROR = 1
"""Exit code after an unhandled exception that a retry may avoid; Python's exit code for all of them."""
_USAGE = 2
_MAY_HEAL = {
    "builtins.OSError",
    "builtins.MemoryError",
    "builtins.EOFError",
    "torch.AcceleratorError",
    "torch.OutOfMemoryError",
    "torch.cuda.OutOfMemoryError",
    "torch.distributed.DistError",
}
"""Exceptions, with their subclasses, that are caused by the machine or network rather than by the program."""
_DOES_NOT_HEAL = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
_HERE = str(Path(__file__).parents[1])


@dataclass(frozen=True, slots=True)
class Target:
    """The program to run: either a script or a module."""

    script: str | None
    module: str | None
    arguments: Sequence[str]

    @classmethod
    def parse(cls, words: Sequence[str]) -> Target | None:
        """Parse `train.py ARGS…` or `-m pkg.train ARGS…`, optionally after `python`; return None otherwise."""
        first, *rest = [*words, ""]
        if Path(first).name.startswith("python") and not Path(first).suffix and rest != [""]:
            words = words[1:]
        if words[:1] == ["-m"]:
            return cls(None, words[1], words[2:]) if len(words) > 1 else None
        return cls(words[0], None, words[1:]) if words and not words[0].startswith("-") else None

    @property
    def folder(self) -> Path:
        """Folder of the program's modules."""
        return Path(self.script).resolve().parent if self.script is not None else Path.cwd()


Compile = Callable[[bytes, str], types.CodeType]


def _compile(source: bytes, file: str) -> types.CodeType:
    code: types.CodeType = compile(source, file, "exec", dont_inherit=True)
    return code


def execute(target: Target, at_end: Callable[[], None], make_code: Compile = _compile) -> int:
    """Run the program and return its exit code.

    at_end     called when the program has returned, or exited with code 0
    make_code  compiles the script's source
    """
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    try:
        try:
            _run(target, main, make_code)
        except SystemExit as left:
            if left.code not in (None, 0):
                raise
        at_end()
    except SystemExit as left:
        return _exit_code(left)
    except CheckpointError as error:
        return _report_checkpoint_error(error)
    except KeyboardInterrupt as error:
        _show(error)
        return 128 + signal.SIGINT
    except BaseException as error:  # noqa: BLE001 - any exception of the program
        _show(error)
        return _code_of(error)
    return 0


def _run(target: Target, main: types.ModuleType, make_code: Compile) -> None:
    if target.module is not None:
        sys.argv = [target.module, *target.arguments]
        runpy._run_module_as_main(target.module)  # type: ignore[attr-defined]  # `python -m` calls it too
        return
    script = str(target.script)
    sys.argv = [script, *target.arguments]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = str(target.folder)
    try:
        source = Path(script).read_bytes()
    except OSError as error:
        print(f"cloudgpu: can't open file {script!r}: {error.strerror}", file=sys.stderr)
        raise SystemExit(_USAGE) from None
    main.__file__ = os.path.abspath(script)  # noqa: PTH100 - links are not resolved, as in Python
    main.__dict__["__cached__"] = None
    exec(make_code(source, main.__file__), main.__dict__)  # noqa: S102 - what `run` is for


def _exit_code(left: SystemExit) -> int:
    """Return the exit code that Python would use for a SystemExit; print a message in it to stderr."""
    if left.code is None or isinstance(left.code, int):
        return left.code or 0
    print(left.code, file=sys.stderr)
    return EXIT_ERROR


def _report_checkpoint_error(error: CheckpointError) -> int:
    sys.last_value = error
    print(f"cloudgpu: {error}", file=sys.stderr)
    OutcomeRecord("", int(os.environ.get("RANK") or 0)).write(Outcome(EXIT_USER, 0, None, None, str(error)))
    return EXIT_USER


def _show(error: BaseException) -> None:
    """Print the traceback without cloudgpu's frames, and set sys.last_value as the interpreter does."""
    sys.last_value = error
    sys.excepthook(
        type(error),
        error.with_traceback(_strip_own_frames(error.__traceback__)),
        _strip_own_frames(error.__traceback__),
    )


def _strip_own_frames(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and _is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def _is_ours(file: str) -> bool:
    return file.startswith(_HERE) or file == "<frozen runpy>"


def _code_of(error: BaseException) -> int:
    """Return the exit code for an exception: 1 if a retry may avoid it, else 70.

    With several ranks it is always 1, because another rank may be the cause.
    """
    kinds = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__}
    heals = bool(kinds & _MAY_HEAL) and not isinstance(error, _DOES_NOT_HEAL)
    if heals or int(os.environ.get("WORLD_SIZE") or 1) > 1:
        return EXIT_ERROR
    return EXIT_USER
