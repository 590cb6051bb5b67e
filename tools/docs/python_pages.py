"""Generate the documentation's page of the Python API: names in `cloudgpu.__all__`, signatures and docstrings."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import cloudgpu

_INTRODUCTION = """# Python API

```python
from datetime import date

import cloudgpu

loaded = cloudgpu.load("job.yaml")
plan = cloudgpu.plan(loaded.spec, machine=cloudgpu.inspect_machine(), today=date.today())
job = cloudgpu.submit(loaded, plan)
```

`import cloudgpu` loads nothing else: each name is imported from its module when it is first used. Programs that train
import `Checkpointer` and `write_output` from `cloudgpu.runtime`; see [checkpointing](../guides/checkpointing.md).
"""
_ROW = re.compile(r"(\*{0,2}\w+)(?: {2,}|: )(\S.*)")
"""Matches a docstring's line on an argument: `name  meaning` or `name: meaning`."""


def render() -> str:
    """Return the page as Markdown."""
    values = {name: getattr(cloudgpu, name) for name in cloudgpu.__all__ if not name.startswith("_")}
    functions = {name: value for name, value in values.items() if inspect.isfunction(value)}
    classes = {name: value for name, value in values.items() if inspect.isclass(value)}
    parts = [_INTRODUCTION, "## Functions\n"]
    parts += [text for name, value in functions.items() for text in _function(name, _node(value), "###")]
    parts.append("## Classes\n")
    parts += [text for name, value in classes.items() for text in _class(name, _node(value))]
    return "\n".join(parts)


def _node(value: Any) -> Any:
    """Return the AST node of a function or class, parsed from its source."""
    return ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]


def _function(name: str, node: ast.FunctionDef, heading: str, owner: str = "") -> Iterator[str]:
    arguments = ast.unparse(node.args).removeprefix("self").removeprefix(", ")
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    yield f"{heading} {owner}{name}\n\n```python\n{_wrapped(name, arguments, result)}\n```\n"
    yield _markdown(ast.get_docstring(node) or "")


def _wrapped(name: str, arguments: str, result: str) -> str:
    """Return the signature; if it is long, with one argument per line."""
    line = f"{name}({arguments}){result}"
    if len(line) <= 88:
        return line

    pieces = re.split(r", (?=\*{0,2}\w+: |\*{1,2}\w|\*,)", arguments)
    return f"{name}(\n" + "".join(f"    {piece},\n" for piece in pieces) + f"){result}"


def _class(name: str, node: ast.ClassDef) -> Iterator[str]:
    yield f"### {name}\n"
    methods = [one for one in node.body if isinstance(one, ast.FunctionDef)]
    made = next((one for one in methods if one.name == "__init__"), None)
    if made is not None and made.args.kwonlyargs:
        arguments = ast.unparse(made.args).removeprefix("self").removeprefix(", ")
        yield f"```python\n{_wrapped(name, arguments, '')}\n```\n"
    yield _markdown(ast.get_docstring(node) or "")
    if name == "JobSpec":
        yield "Its fields are [those of the job file](job-file-fields.md).\n"
    else:
        yield _table("field | type | meaning", list(_fields(node)))
    properties = [one for one in methods if _is_property(one) and not one.name.startswith("_")]
    yield _table(
        "property | type | meaning",
        [
            (one.name, ast.unparse(one.returns) if one.returns else "", ast.get_docstring(one) or "")
            for one in properties
        ],
    )
    for one in methods:
        if not one.name.startswith("_") and not _is_property(one):
            yield from _function(one.name, one, "####", f"{name}.")


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, str, str]]:
    """Yield name, type and docstring of each public annotated attribute."""
    for one, following in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and not one.target.id.startswith("_"):
            text = ""
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                text = inspect.cleandoc(str(following.value.value))
            yield one.target.id, ast.unparse(one.annotation), text


def _is_property(node: ast.FunctionDef) -> bool:
    return any("property" in ast.unparse(one) for one in node.decorator_list)


def _table(head: str, rows: list[tuple[str, str, str]]) -> str:
    if not rows:
        return ""
    lines = [f"| {head} |", "|---|---|---|"]
    for name, kind, meaning in rows:
        cells = [f"`{name}`", f"`{kind.replace('|', 'or')}`", _cell(meaning)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _markdown(docstring: str) -> str:
    """Return a docstring as Markdown: a paragraph whose lines describe arguments becomes a table."""
    parts = []
    for paragraph in docstring.split("\n\n"):
        lines = paragraph.split("\n")
        rows: list[list[str]] = []
        for line in lines:
            match = _ROW.fullmatch(line)
            if match:
                rows.append([match[1], match[2]])
            elif rows and line.startswith(" "):
                rows[-1][1] += " " + line.strip()
            else:
                rows = []
                break
        if rows:
            body = "\n".join(f"| `{name}` | {_cell(meaning)} |" for name, meaning in rows)
            parts.append(f"| argument | meaning |\n|---|---|\n{body}")
        else:
            parts.append(paragraph)
    return "\n\n".join(parts) + "\n"
