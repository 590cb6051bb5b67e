"""Values from outside of the job file: those of the command line, which win over the file's
(`--set resources.region=us-east1`), and configured defaults, which apply where neither says anything.

A value is plain text, but a value that begins with a quote, [ or { is parsed as YAML, and `null` or `~` is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..diagnostics import Diagnostic, Loc, SpecError, quote, shorten
from .source import INVISIBLE, Source

REGION: Loc = ("resources", "region")
_MAX_STEPS = 16
_YAML_STARTS = ("'", '"', "[", "{")


class Override(NamedTuple):
    """Value to set in the document."""

    path: Loc
    value: Any
    """Text, None, or lists and mappings of them."""
    label: str
    """Name of the argument in diagnostics: `--set resources.region`, `--region`."""
    unless: tuple[Loc, ...] = ()
    """Places in the document; if one of them is given, even as null, this value is not set: it is a default. Empty: it
    is always set."""


def parse_override(text: str) -> Override:
    """Parse `KEY=VALUE`; KEY is a path with dots. Raises SpecError."""
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


def apply_defaults(document: dict[str, object], defaults: Sequence[Override]) -> tuple[dict[str, Any], list[Override]]:
    """Return a copy of the document with the defaults that apply, and these. Raises SpecError."""
    applied: list[Override] = []
    changed: dict[str, Any] = document
    for default in sorted(defaults, key=lambda one: one.path == REGION):  # last: it depends on the job's clouds
        if any(_is_given(document, path) for path in default.unless):
            continue
        fitting = _for_clouds(changed, default) if default.path == REGION else default
        if fitting is not None:
            applied.append(fitting)
            changed = apply_overrides(changed, [fitting])
    return changed, applied


def _is_given(document: Mapping[str, object], path: Loc) -> bool:
    *parents, key = path
    container = _value_at(document, tuple(parents))
    return container is not None and (not isinstance(container, Mapping) or key in container)


def _value_at(value: object, path: Loc) -> object:
    for step in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(step)
    return value


def _for_clouds(document: dict[str, object], default: Override) -> Override | None:
    """Return the default regions that are of the job's clouds; None if one of the clouds has none of them."""
    from ..catalog import CLOUDS, regions

    named, wanted = _value_at(document, ("resources", "cloud")), default.value
    if named is None:
        return default
    clouds, places = _texts(named), _texts(wanted)
    if clouds is None or places is None:
        return default  # validation reports it
    of_cloud = {cloud: [place for place in places if place in regions(cloud)] for cloud in clouds if cloud in CLOUDS}
    if len(of_cloud) < len(clouds) or not all(of_cloud.values()):
        return None
    fitting = [place for place in places if any(place in found for found in of_cloud.values())]
    return default._replace(value=fitting)


def _texts(value: object) -> list[str] | None:
    """Return a text or a list of texts as a list; None for any other value."""
    items = value if isinstance(value, list | tuple) else [value]
    texts = [item for item in items if isinstance(item, str)]
    return texts if len(texts) == len(items) else None


def _put(container: object, path: Loc, override: Override) -> Any:  # a value of the document
    """Return a copy of the container with the value set at the path; YAML aliases may share the original."""
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
