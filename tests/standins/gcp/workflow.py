"""Interpreter for the subset of Google Cloud Workflows that cloudgpu's workflow uses; its calls go over HTTP.

    run(source, send, environ={"GOOGLE_CLOUD_PROJECT_ID": "p"}, now=1_700_000_000.0) -> Ran(value, log)

With `may_log` False its account lacks `logging.logEntries.create`, which sys.log requires.

It follows Workflows' syntax reference and standard library: steps with assign, call, switch, for, try/except, next and
return; subworkflows; expressions of names, members, indexes, `+`, `or`, comparisons, lists and calls. Anything else is
an error. Variables that are first set in a `for` or `except` are local to it.

Known differences: values are Python's, so `+` accepts more types; there are no limits and no retries. That sys.log
fails without its permission is an assumption: the documentation names the permission, but not the effect of its
absence.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

Send = Callable[[str, str, Mapping[str, Any]], Any]
"""(HTTP method, url, arguments of the call) -> the response's body; raises the call's error."""
_EXPRESSION = re.compile(r"\$\{(.*)\}", re.DOTALL)
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
}


@dataclass
class Ran:
    """Result and log of a run."""

    value: Any = None
    log: list[Any] = field(default_factory=list)


class _Jump(Exception):  # noqa: N818 - no error
    def __init__(self, step: str) -> None:
        super().__init__(step)
        self.step = step


class _Return(Exception):  # noqa: N818
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


def run(source: str, send: Send, *, environ: Mapping[str, str], now: float, may_log: bool = True) -> Ran:
    """Run a workflow. Raises the workflow's error."""
    ran = Ran()
    ran.value = _Workflow(yaml.safe_load(source), send, environ, now, ran.log if may_log else None).call("main", {})
    return ran


class _Workflow:
    def __init__(
        self, parts: Mapping[str, Any], send: Send, environ: Mapping[str, str], now: float, log: list[Any] | None
    ) -> None:
        self._parts, self._send, self._log = parts, send, log
        self._functions: dict[str, Callable[..., Any]] = {
            "default": lambda value, other: other if value is None else value,
            "double": float,
            "keys": list,
            "map.get": _get,
            "sys.get_env": lambda name: environ[name],
            "sys.now": lambda: now,
            "text.match_regex": lambda text, pattern: re.search(pattern, text) is not None,
            "text.split": str.split,
        }

    def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        part = self._parts[name]
        unknown = set(arguments) - set(part.get("params", []))
        assert not unknown, f"{name} has no parameters {unknown}"
        try:
            self._steps(part["steps"], dict(arguments))
        except _Return as ended:
            return ended.value
        return None

    def _steps(self, steps: Sequence[Mapping[str, Any]], known: dict[str, Any]) -> None:
        names = [next(iter(step)) for step in steps]
        at = 0
        while at < len(steps):
            try:
                self._step(steps[at][names[at]], known)
            except _Jump as jump:
                if jump.step not in names:
                    raise
                at = names.index(jump.step)
            else:
                at += 1

    def _step(self, step: Mapping[str, Any], known: dict[str, Any]) -> None:
        for one in step.get("assign", []):
            for name, value in one.items():
                known[name] = self._value(value, known)
        if "call" in step:
            answer = self._called(step["call"], self._value(step.get("args", {}), known))
            if "result" in step:
                known[step["result"]] = answer
        if "for" in step:
            self._for(step["for"], known)
        if "try" in step:
            self._try(step, known)
        for case in step.get("switch", []):
            if self._value(case["condition"], known):
                self._step({key: value for key, value in case.items() if key != "condition"}, known)
                break
        if "return" in step:
            raise _Return(self._value(step["return"], known))
        if "next" in step:
            raise _Jump(step["next"])

    def _for(self, loop: Mapping[str, Any], known: dict[str, Any]) -> None:
        for value in self._value(loop["in"], known):
            inner = {**known, loop["value"]: value}
            self._steps(loop["steps"], inner)
            known |= {name: inner[name] for name in known}

    def _try(self, step: Mapping[str, Any], known: dict[str, Any]) -> None:
        try:
            self._step(step["try"], known)
        except (_Return, _Jump):
            raise
        except Exception as error:  # noqa: BLE001 - the workflow handles any error
            inner = {**known, step["except"]["as"]: str(error)}
            self._steps(step["except"]["steps"], inner)
            known |= {name: value for name, value in inner.items() if name != step["except"]["as"]}

    def _called(self, name: str, arguments: Mapping[str, Any]) -> Any:
        if name == "sys.log":
            if self._log is None:
                raise PermissionError("403 Permission 'logging.logEntries.create' denied")
            return self._log.append(arguments)
        if name.startswith("http."):
            assert set(arguments) <= {"url", "query", "body", "auth", "headers", "timeout"}, arguments
            return {"body": self._send(name.removeprefix("http.").upper(), arguments["url"], arguments)}
        return self.call(name, arguments)

    # -- expressions

    def _value(self, told: Any, known: Mapping[str, Any]) -> Any:
        if isinstance(told, Mapping):
            return {key: self._value(value, known) for key, value in told.items()}
        if isinstance(told, list):
            return [self._value(one, known) for one in told]
        found = _EXPRESSION.fullmatch(told) if isinstance(told, str) else None
        return told if found is None else self._evaluated(ast.parse(found[1].strip(), mode="eval").body, known)

    def _evaluated(self, node: ast.expr, known: Mapping[str, Any]) -> Any:
        match node:
            case ast.Constant():
                found: Any = node.value
            case ast.Name():
                found = known[node.id]
            case ast.List():
                found = [self._evaluated(one, known) for one in node.elts]
            case ast.Attribute():
                found = self._evaluated(node.value, known)[node.attr]
            case ast.Subscript():
                found = self._evaluated(node.value, known)[self._evaluated(node.slice, known)]
            case ast.BinOp(op=ast.Add()):
                found = self._evaluated(node.left, known) + self._evaluated(node.right, known)
            case ast.BoolOp(op=ast.Or()):
                found = any(self._evaluated(one, known) for one in node.values)
            case ast.Compare(ops=[how], comparators=[right]):
                found = _COMPARE[type(how)](self._evaluated(node.left, known), self._evaluated(right, known))
            case ast.Call():
                found = self._functions[ast.unparse(node.func)](*(self._evaluated(one, known) for one in node.args))
            case _:
                raise ValueError(f"{ast.unparse(node)} is not understood")
        return found


def _get(value: Any, path: Any) -> Any:
    """Return the value at a path, or None if a part of it is missing."""
    for key in path if isinstance(path, list) else [path]:
        if not isinstance(value, Mapping) or key not in value:
            return None
        value = value[key]
    return value
