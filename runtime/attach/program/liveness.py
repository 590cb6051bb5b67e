"""Analysis of a loop's source: dead variables, which need not be saved, and iterations that the program skips."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from types import CodeType

_LEAVES = (ast.Break, ast.Return, ast.Continue, ast.Yield, ast.YieldFrom, ast.Raise)


def dead_names(loop: ast.For | None, function: CodeType) -> frozenset[str]:
    """Return the dead variables at the start of an iteration: those that the body assigns before it reads them.

    function  code object that contains the loop; variables that its nested functions read are excluded
    """
    if loop is None:
        return frozenset()
    dead = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    read: set[str] = set()
    for statement in loop.body:
        targets = _assigned(statement)
        read.update(_read(statement))
        dead.update(targets - read)
        if any(isinstance(node, _LEAVES) for node in ast.walk(statement)):
            break
    elsewhere = set(function.co_cellvars) | set(_read_inside(function))
    return frozenset(dead - elsewhere)


def _assigned(statement: ast.stmt) -> set[str]:
    """Return the names that a statement always assigns."""
    if isinstance(statement, ast.Assign):
        parts: list[ast.expr] = statement.targets
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        parts = [statement.target]
    else:
        if isinstance(statement, ast.With):  # its body is executed exactly once
            return set().union(*map(_assigned, statement.body))
        return set()
    return {node.id for part in parts for node in ast.walk(part) if isinstance(node, ast.Name) and _is_stored(node)}


def _is_stored(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def _read(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement reads before assigning them."""
    if isinstance(statement, ast.With):
        for item in statement.items:
            yield from _loads(item.context_expr)
        assigned: set[str] = set()
        for inner in statement.body:
            yield from (name for name in _read(inner) if name not in assigned)
            assigned |= _assigned(inner)
        return
    yield from _loads(statement)


def _loads(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and not _is_stored(part):
            yield part.id
        elif isinstance(part, ast.AugAssign) and isinstance(part.target, ast.Name):
            yield part.target.id


def _read_inside(function: CodeType) -> Iterator[str]:
    """Yield the names that nested functions read from enclosing scopes."""
    for constant in function.co_consts:
        if inspect.iscode(constant):
            yield from (*constant.co_names, *constant.co_freevars)
            yield from _read_inside(constant)


def skips_by_number(loop: ast.For | None) -> str | None:
    """Return the condition of an `if …: continue` on the loop's variable, or None.

    A program that resumes by itself skips the completed iterations in this way.
    """
    for statement in loop.body if loop is not None else ():
        if isinstance(statement, ast.If) and all(isinstance(one, ast.Continue) for one in statement.body):
            test = statement.test
            names = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}  # type: ignore[union-attr]
            if isinstance(test, ast.Compare) and names & {n.id for n in ast.walk(test) if isinstance(n, ast.Name)}:
                return ast.unparse(test)
    return None
