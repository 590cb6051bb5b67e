"""Generate the documentation's page of the job file's fields from its JSON Schema."""

from __future__ import annotations

import json
from typing import Any

from cloudgpu.jobspecs.schema import job_schema

_INTRODUCTION = """# Fields of the job file

Every field with its type, default and limits, as `cloudgpu schema` prints them for editors. [The job file](job-file.md)
explains what they mean together.
"""


def render() -> str:
    """Return the page as Markdown."""
    schema = job_schema()
    parts = [_INTRODUCTION, "## Top level\n", _table(schema)]
    for name, definition in schema["$defs"].items():
        parts.append(f"## {name}\n")
        for form in definition.get("anyOf", [definition]):
            if "properties" in form:
                parts += [form.get("description", "") + "\n", _table(form)]
            else:
                parts.append(f"{_kind(form)}, or a mapping:\n")
    return "\n".join(parts)


def _table(schema: dict[str, Any]) -> str:
    required = schema.get("required", [])
    lines = ["| field | type | default | meaning |", "|---|---|---|---|"]
    for name, field in schema["properties"].items():
        default = (
            "*required*" if name in required else f"`{json.dumps(field['default'])}`" if "default" in field else ""
        )
        lines.append(f"| `{name}` | {_kind(field)} | {default} | {_cell(field.get('description', ''))} |")
    return "\n".join(lines) + "\n"


def _kind(field: dict[str, Any]) -> str:
    """Return the type of a field's values in words, as Markdown."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in field or "const" in field:
        return ", ".join(f"`{word}`" for word in field.get("enum") or [field["const"]])
    if forms := field.get("anyOf") or field.get("oneOf"):
        return " or ".join(dict.fromkeys(_kind(form) for form in forms if form.get("type") != "null"))
    if field.get("type") == "array":
        return f"list of {_kind(field['items'])}"
    if field.get("type") == "object":
        return f"mapping to {_kind(field['additionalProperties'])}" if field.get("additionalProperties") else "mapping"
    return _scalar(field)


def _scalar(field: dict[str, Any]) -> str:
    if field.get("type") in ("integer", "number"):
        bounds = [str(field[key]) for key in ("minimum", "exclusiveMinimum", "maximum") if key in field]
        return f"{'whole number' if field['type'] == 'integer' else 'number'} {' to '.join(bounds)}".strip()
    examples = field.get("examples", [])
    return "text" + (f", e.g. {', '.join(f'`{one}`' for one in examples)}" if examples else "")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
