"""Write a JobSpec as a YAML job file: keys in the documentation's order, with shorthands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import yaml

    from .models import AcceleratorRequest, JobSpec

_INLINE_WIDTH = 70
"""Maximum columns of a list that is written on one line."""
_COMMENT_WIDTH = 98


def to_mapping(spec: JobSpec) -> dict[str, Any]:
    """Return the shortest job file that loads as this spec: no defaults, shorthands, keys in documented order."""
    job = spec.to_stored()
    resources = job.get("resources", {})
    if spec.roles is None:
        resources["accelerator"] = _accelerators(spec.resources.accelerator)
    for role_name, role in (spec.roles or {}).items():
        rest = {name: value for name, value in job["roles"][role_name].items() if name != "accelerator"}
        job["roles"][role_name] = {"accelerator": _accelerators(role.accelerator), **rest}
    for name in ("cloud", "region", "zone", "market"):
        if name in resources:
            resources[name] = _one_or_list(resources[name])
    # The accelerator comes first, because readers look for it first.
    job["resources"] = dict(sorted(resources.items(), key=lambda item: _rank(item[0])))
    if not job["resources"]:
        del job["resources"]
    return {name: job[name] for name in type(spec).model_fields if name in job}


def to_text(spec: JobSpec, notes: Sequence[str] = ()) -> str:
    """Return the job file as YAML, with the notes as comments at the top."""
    return "".join(f"{line}\n" for note in notes for line in _comment(note)) + dump(to_mapping(spec))


def to_json(spec: JobSpec) -> str:
    """Return the job file as JSON, which can be loaded, because JSON is valid YAML."""
    import json

    return json.dumps(to_mapping(spec), indent=2, ensure_ascii=False) + "\n"


def dump(value: Mapping[str, object]) -> str:
    """Return block-style YAML, with short lists of plain values on one line and multi-line text as literal blocks."""
    import yaml

    return yaml.dump(
        value, Dumper=_dumper(), sort_keys=False, allow_unicode=True, width=_COMMENT_WIDTH, default_flow_style=False
    )


def _accelerators(requests: Sequence[AcceleratorRequest]) -> Any:  # text, a mapping or a list
    return _one_or_list([_accelerator(request) for request in requests]) if requests else "none"


def _accelerator(request: AcceleratorRequest) -> str | dict[str, str]:
    if request.name is None:
        return {"memory": str(request.memory), "count": str(request.count)}
    return f"{request.name}:{request.count}"


def _one_or_list(values: Sequence[object]) -> Any:
    return values[0] if len(values) == 1 else list(values)


_ORDER = ("accelerator", "cloud", "region", "zone", "machine_type", "market", "nodes", "disk")


def _rank(name: str) -> int:
    return _ORDER.index(name) if name in _ORDER else len(_ORDER)


def _comment(note: str) -> list[str]:
    import textwrap

    # One line of text: a line break in the note would end the comment.
    plain = " ".join(note.split())
    return textwrap.wrap(plain, _COMMENT_WIDTH, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False)


def _dumper() -> type[yaml.SafeDumper]:
    import yaml

    class Dumper(yaml.SafeDumper):
        """SafeDumper that chooses styles for readability."""

        def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - yaml's signature
            return True

        def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
            super().increase_indent(flow, False)

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    def sequence(dumper: yaml.SafeDumper, value: Sequence[object]) -> yaml.SequenceNode:
        return dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=_is_short(value))

    Dumper.add_representer(str, text)
    Dumper.add_representer(list, sequence)
    Dumper.add_representer(tuple, sequence)
    return Dumper


def _is_short(values: Sequence[object]) -> bool:
    plain = all(isinstance(value, str | int) and "\n" not in str(value) for value in values)
    return plain and sum(len(str(value)) + 2 for value in values) <= _INLINE_WIDTH
