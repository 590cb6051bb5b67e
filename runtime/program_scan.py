"""Find the imports of a training program by parsing its source; no user code is run. Standard library only.

The script that `run` starts is parsed, and the modules of the code folder that it imports directly. The result is a
hint for the choice of a launcher: imports may be computed at run time, or never be executed.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

_MAX_BYTES = 1 << 20
_MAX_MODULES = 100
_PYTHON = re.compile(r"python(\d+(\.\d+)*)?t?")
_WITH_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs"})
_SEPARATORS = frozenset({"&&", "||", ";", "|", "&", "(", ")", "\n"})
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


@dataclass(frozen=True, slots=True)
class Start:
    """A start of Python found in a command. Exactly one of `script`, `module` (-m) and `code` (-c) is set."""

    script: str | None = None
    module: str | None = None
    code: str | None = None
    folder: str = ""
    """Working folder, relative to the code folder, after the `cd` commands that precede the start."""


@dataclass(frozen=True, slots=True)
class Scan:
    """Result of a scan; all fields are empty if the program cannot be read."""

    entry: str = ""
    """Program as given to Python, e.g. `train.py`, `-m trainer.task`."""
    imports: dict[str, str] = field(default_factory=dict)
    """Top-level name → the file that imports it."""
    starters: tuple[str, ...] = ()
    """Commands in `run` that start the processes of a distributed program, e.g. `torchrun`."""


STARTERS = frozenset({"torchrun", "mpirun", "mpiexec", "horovodrun", "deepspeed", "accelerate", "srun"})
_STARTER_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
}


def scan(run: str | Sequence[str], code: Path | None) -> Scan:
    """Parse the program of a command line. Unreadable or invalid files are ignored; nothing is raised for them.

    code   folder in which the command runs
    """
    commands = list(_commands(run))
    start = next((found for words, folder in commands if (found := python_start(words, folder))), None)
    starters = [name for words, _ in commands if (name := _starter(words))]
    if start is not None and start.module in _STARTER_MODULES:
        starters.append(_STARTER_MODULES[start.module])
    if start is None:
        return Scan(starters=tuple(starters))
    entry, imports = _read_program(start, code)
    return Scan(entry, imports, tuple(starters))


def python_start(words: Sequence[str], folder: str = "") -> Start | None:
    """Return the Python program that a simple command starts, also by way of another command (`uv run python …`)."""
    for at, word in enumerate(words):
        name = PurePosixPath(word).name
        if _PYTHON.fullmatch(name):
            return _python_options(words[at + 1 :], folder)
        if name.endswith(".py") and not word.startswith("-"):
            return Start(script=word, folder=folder)
    return None


def _python_options(words: Sequence[str], folder: str) -> Start | None:
    rest = iter(words)
    for word in rest:
        if word in _WITH_VALUE:
            next(rest, None)
        elif re.fullmatch(r"-[A-Za-z]*m", word):
            return Start(module=next(rest, ""), folder=folder)
        elif re.fullmatch(r"-[A-Za-z]*c", word):
            return Start(code=next(rest, ""), folder=folder)
        elif not word.startswith("-"):
            return Start(script=word, folder=folder)
    return None


def _starter(words: Sequence[str]) -> str | None:
    """Return the command's name if it starts the processes of a distributed program."""
    command = next((word for word in words if not _ASSIGNMENT.match(word) and word not in ("exec", "env", "time")), "")
    name = PurePosixPath(command).name
    return name if name in STARTERS else None


def _commands(run: str | Sequence[str]) -> Iterator[tuple[Sequence[str], str]]:
    """Yield the simple commands of a command line, each with the folder that earlier `cd` commands lead to."""
    if not isinstance(run, str):
        shell = len(run) > 2 and PurePosixPath(run[0]).name in ("sh", "bash") and run[1] in ("-c", "-ec", "-lc")
        if not shell:
            yield list(run), ""
            return
        run = run[2]
    folder, words = "", list[str]()
    for word in [*_shell_words(run), ";"]:
        if word not in _SEPARATORS:
            words.append(word)
            continue
        if words[:1] == ["cd"] and len(words) == 2:
            folder = os.path.join(folder, words[1])  # noqa: PTH118 - only text so far: may contain ".."
        elif words:
            yield words, folder
        words = []


def _shell_words(text: str) -> list[str]:
    """Split a command line into words like a shell, without substitutions; return [] if its quotes do not match."""
    lexer = shlex.shlex(text.replace("\\\n", " "), posix=True, punctuation_chars=";|&()\n")
    lexer.whitespace = " \t\r"
    lexer.whitespace_split = True
    try:
        return [word if set(word) - set("\n;") else ";" for word in lexer]
    except ValueError:
        return []


# --- reading ---


def _read_program(start: Start, code: Path | None) -> tuple[str, dict[str, str]]:
    if start.code is not None:
        return "-c", {_top(name): "-c" for name in _imported(start.code.encode(), ())}
    if code is None:
        return "", {}
    found = _find(start, code)
    if found is None:
        return "", {}
    path, package, search = found
    entry = start.script if start.module is None else f"-m {start.module}"
    names = _imported(_text(path, code), package)
    imports = {_top(name): entry or "" for name in names}
    for own in list(_own_modules(names, search, code))[:_MAX_MODULES]:
        label = own.relative_to(code.resolve()).as_posix()
        for name in _imported(_text(own, code), _package_of(own, search)):
            imports.setdefault(_top(name), label)
    return entry or "", imports


def _find(start: Start, code: Path) -> tuple[Path, Sequence[str], Path] | None:
    """Return the program's file, its package, and the folder from which its imports are resolved."""
    folder = code / start.folder
    if start.script is not None:
        path = folder / start.script
        return (path, (), path.parent) if _is_readable(path, code) else None
    parts = (start.module or "").split(".")
    for path in (folder.joinpath(*parts).with_suffix(".py"), folder.joinpath(*parts, "__main__.py")):
        if all(parts) and _is_readable(path, code):
            return path, path.relative_to(folder).parts[:-1], folder
    return None


def _own_modules(names: Sequence[str], search: Path, code: Path) -> Iterator[Path]:
    """Yield the files in the code folder that define the imported names and their parent packages."""
    seen = set()
    for name in names:
        parts = name.split(".")
        for depth in range(len(parts), 0, -1):
            base = search.joinpath(*parts[:depth])
            for path in (base.with_name(f"{base.name}.py"), base / "__init__.py"):
                if path not in seen and _is_readable(path, code):
                    seen.add(path)
                    yield path.resolve()


def _package_of(path: Path, search: Path) -> Sequence[str]:
    try:
        return path.relative_to(search.resolve()).parts[:-1]
    except ValueError:
        return ()


def _is_readable(path: Path, code: Path) -> bool:
    """Return whether a path is a regular file within the code folder (links resolved) of at most _MAX_BYTES bytes."""
    try:
        real = path.resolve()
        return real.is_file() and real.is_relative_to(code.resolve()) and real.stat().st_size <= _MAX_BYTES
    except (OSError, ValueError, RuntimeError):  # a cycle of links; a NUL in the name
        return False


def _text(path: Path, code: Path) -> bytes:
    try:
        return path.read_bytes() if _is_readable(path, code) else b""
    except OSError:
        return b""


def _imported(text: bytes, package: Sequence[str]) -> list[str]:
    """Return the dotted names that a module imports, except under `if TYPE_CHECKING`; [] if it is invalid Python."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found: dict[str, None] = {}
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            pending += node.orelse
            continue
        found.update(dict.fromkeys(_names(node, package)))
        pending += ast.iter_child_nodes(node)
    return list(found)


def _names(node: ast.AST, package: Sequence[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = list(package[: len(package) - node.level + 1]) if node.level else []
        module = ".".join([*base, *(node.module.split(".") if node.module else [])])
        yield from (f"{module}.{alias.name}" if module else alias.name for alias in node.names)


def _is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def _top(name: str) -> str:
    return name.partition(".")[0]
