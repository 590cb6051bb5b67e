"""Command line values that win over the job file's: `--set resources.region=us-east1`.

A value is plain text; one that begins with a quote, [ or { is parsed as YAML, and `null` or `~` is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..diagnostics import Diagnostic, Loc, SpecError, quote, shorten
from .source import INVISIBLE, Source

_MAX_STEPS = 16
_YAML_STARTS = ("'", '"', "[", "{")


class Override(NamedTuple):
    """Value to set in the document."""

    path: Loc
    value: Any
    """Text, None, or lists and mappings of them."""
    label: str
    """The argument as diagnostics name it: `--set resources.region`, `--region`."""


def parse_override(text: str) -> Override:
    """Parse `KEY=VALUE`, KEY being a path with dots. Raises SpecError."""
    key, equals, value = text.partition("=")
    label = f"--set {shorten(key.strip())}"
    path = tuple(key.strip().split("."))
    if not equals or not all(path) or len(path) > _MAX_STEPS:
        raise _refused(label, "expected KEY=VALUE", "as in --set resources.region=us-east1")
    return Override(path, _value(value, label), label)


def parse_overrides(given: Mapping[str, object] | Sequence[str | Override]) -> list[Override]:
    """Parse overrides of either form. Raises SpecError with every invalid one."""
    if isinstance(given, Mapping):
        given = [Override(tuple(key.split(".")), value, f"--set {shorten(key)}") for key, value in given.items()]
    overrides: list[Override] = []
    diagnostics: list[Diagnostic] = []
    for item in given:
        try:
            override = item if isinstance(item, Override) else parse_override(item)
            check_visible([override.path, override.value], override.label)
            overrides.append(override)
        except SpecError as error:
            diagnostics += error.diagnostics
    if diagnostics:
        raise SpecError(diagnostics)
    return overrides


def check_visible(value: object, label: str) -> None:
    """Raise SpecError if a text, possibly nested in a list or mapping, has a character not allowed in job files."""
    if isinstance(value, str):
        found = INVISIBLE.search(value)
        if found is not None:
            message = f"there is a character that cannot be seen (U+{ord(found[0]):04X})"
            raise _refused(label, message, "delete it, or save what it comes from as UTF-8")
    elif isinstance(value, Mapping):
        check_visible([*value.keys(), *value.values()], label)
    elif isinstance(value, list | tuple):
        for item in value:
            check_visible(item, label)


def apply_overrides(document: dict[str, object], overrides: Sequence[Override]) -> dict[str, Any]:
    """Return a copy of the document with the values set; missing mappings are created. Raises SpecError."""
    diagnostics = []
    for override in overrides:
        try:
            document = _put(_with_named_secrets(document, override), override.path, override)
        except SpecError as error:
            diagnostics += error.diagnostics
    if diagnostics:
        raise SpecError(diagnostics)
    return document


def _with_named_secrets(document: dict[str, object], override: Override) -> dict[str, object]:
    """Return the document with a list of secrets as a mapping, if the override sets one of them by its name."""
    names = document.get("secrets")
    is_named = override.path[:1] == ("secrets",) and not str(override.path[-1]).isdecimal()
    if not is_named or not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return document
    return {**document, "secrets": dict.fromkeys(names)}


def _put(container: object, path: Loc, override: Override) -> Any:  # a value of the document
    """Return a copy of the container with the value set at the path; copied, since YAML aliases share values."""
    if not path:
        return override.value
    step, *rest = path
    if container is None or isinstance(container, Mapping):
        inside = {} if container is None else container
        return {**inside, str(step): _put(inside.get(str(step)), tuple(rest), override)}
    if isinstance(container, list | tuple):
        index = int(step) if str(step).isascii() and str(step).isdecimal() and len(str(step)) < 6 else len(container)
        if index >= len(container):
            hint = f"the list has the entries 0 to {len(container) - 1}" if container else "the list is empty"
            raise _refused(override.label, f"there is no entry {quote(step)} in this list", hint)
        return [*container[:index], _put(container[index], tuple(rest), override), *container[index + 1 :]]
    inside_what = "this value" if override.path[0] in ("env", "secrets") else quote(container)
    raise _refused(override.label, f"there are no keys inside {inside_what}", "set the whole value")


def _value(text: str, label: str) -> Any:
    if text in ("null", "~"):
        return None
    if not text.startswith(_YAML_STARTS):
        return text
    from .yaml_reader import read_yaml

    try:
        # The value starts a new line, so that quotes and brackets may span lines.
        document = read_yaml(Source(label, f"value:\n {text}"))
        if document.diagnostics:
            raise SpecError(document.diagnostics)
        return document.value["value"]
    except SpecError as error:
        raise SpecError([_elsewhere(found, label) for found in error.diagnostics]) from None


def _elsewhere(found: Diagnostic, label: str) -> Diagnostic:
    return Diagnostic(label, 0, 0, found.code, found.message, found.hint)


def _refused(label: str, message: str, hint: str = "") -> SpecError:
    return SpecError([Diagnostic(label, 0, 0, "bad-override", message, hint)])
