"""Rewriting of the program's `for` loops, to track its position in them.

    for batch in loader:    becomes    for batch in __cloudgpu_loop__(loader, "train.py: main: for batch in loader:"):

Line numbers do not change. Comprehensions and code run by `exec` are not rewritten.
"""

from __future__ import annotations

import ast
import importlib.machinery
import sys
from collections import Counter
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import CodeType, ModuleType

from .frame_inspection import Code

HOOK = "__cloudgpu_loop__"
"""Name of the builtin function that rewritten loops call with their iterable and their site."""
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Rewriter:
    """Compiler of a program's modules, which rewrites their loops and keeps the loops' syntax trees by site."""

    def __init__(self, code: Code) -> None:
        self.loops: dict[str, ast.For] = {}
        self.trains = False
        """True if any module of the program mentions `.backward`."""
        self.imports: set[str] = set()
        """Top-level packages that the program imports anywhere."""
        self._code = code

    def install(self) -> None:
        """Rewrite the program's modules on import."""
        sys.meta_path.insert(0, _Finder(self, self._code))

    def compile(self, source: bytes, file: str) -> CodeType:
        """Return the rewritten code of a source file. Raises SyntaxError."""
        tree = ast.parse(source, file)
        self.trains |= any(isinstance(node, ast.Attribute) and node.attr == "backward" for node in ast.walk(tree))
        self.imports |= {name for node in ast.walk(tree) for name in _imported(node)}
        _Sites(Path(file).name, self.loops).visit(tree)
        code: CodeType = compile(tree, file, "exec", dont_inherit=True)
        return code


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom) and not node.level:
        return [str(node.module).partition(".")[0]]
    return [name.name.partition(".")[0] for name in node.names] if isinstance(node, ast.Import) else []


class _Sites(ast.NodeTransformer):
    """AST transformer that wraps the iterable of each `for` loop.

    A loop's site is the file, the function and the text of its first line, with a number if these are not unique.
    """

    def __init__(self, file: str, loops: dict[str, ast.For]) -> None:
        self._file, self._loops = file, loops
        self._scope: list[str] = []
        self._seen: Counter[str] = Counter()

    def visit(self, node: ast.AST) -> ast.AST:
        if not isinstance(node, _SCOPES):
            found: ast.AST = super().visit(node)
            return found
        self._scope.append(node.name)
        try:
            return self.generic_visit(node)
        finally:
            self._scope.pop()

    def visit_For(self, node: ast.For) -> ast.AST:
        text = f"for {ast.unparse(node.target)} in {ast.unparse(node.iter)}"
        site = f"{self._file}: {'.'.join(self._scope) or '<module>'}: {text}"
        self._seen[site] += 1
        if self._seen[site] > 1:
            site = f"{site} #{self._seen[site]}"
        self.generic_visit(node)
        self._loops[site] = node
        call = ast.Call(ast.Name(HOOK, ast.Load()), [node.iter, ast.Constant(site)], [])
        node.iter = ast.fix_missing_locations(ast.copy_location(call, node.iter))
        return node


class _Finder(importlib.machinery.PathFinder):
    """Meta path finder for the program's modules, installed before Python's PathFinder."""

    def __init__(self, rewriter: Rewriter, code: Code) -> None:
        self._rewriter, self._code = rewriter, code

    def find_spec(  # type: ignore[override]  # PathFinder's is a class method
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or type(spec.loader) is not importlib.machinery.SourceFileLoader:
            return None
        if not self._code.owns(spec.origin):
            return None
        spec.loader = _Loader(fullname, str(spec.origin), self._rewriter)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, rewriter: Rewriter) -> None:
        super().__init__(name, path)
        self._rewriter = rewriter

    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        return self._rewriter.compile(self.get_data(path), path)
