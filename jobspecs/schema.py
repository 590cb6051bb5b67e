"""JSON Schema of job files (draft 2020-12), for editors: it accepts the files that the loader accepts.

Editors parse `8`, `no` and `1.10` as numbers and booleans, but the loader reads them as text, so text fields accept
numbers and booleans too. A schema cannot check whether names exist, or whether keys exclude each other; the command
`validate` does.
"""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from .models import JobSpec

_GIVEN = {"not": {"type": "null"}}
_PROGRAM = {
    "anyOf": [
        {"required": ["run"], "properties": {"run": _GIVEN}},
        {"required": ["image"], "properties": {"image": _GIVEN}},
        {
            "required": ["roles"],
            "properties": {
                "roles": {
                    "type": "object",
                    "additionalProperties": {"required": ["image"], "properties": {"image": _GIVEN}},
                }
            },
        },
    ]
}
"""Condition that a job has `run`, or for every machine an image, whose entrypoint is then the program."""
DIALECT = "https://json-schema.org/draft/2020-12/schema"


class _Generator(GenerateJsonSchema):
    """Schema generator that omits titles, and writes defaults in the form of a job file."""

    def field_title_should_be_set(self, schema: object) -> bool:  # noqa: ARG002 - Pydantic's signature
        return False

    def default_schema(self, schema: Any) -> JsonSchemaValue:  # Pydantic's signature
        """Omit defaults that are not plain JSON values; the field's `json_schema_extra` has them instead."""
        generated = super().default_schema(schema)
        if not isinstance(schema.get("default"), str | int | None) or generated.get("default", 0) is None:
            generated.pop("default", None)
        return generated


def job_schema() -> dict[str, Any]:
    """Return the schema of a job file."""
    schema = JobSpec.model_json_schema(schema_generator=_Generator)
    for definition in (schema, *schema["$defs"].values()):
        definition.pop("title", None)
    return {"$schema": DIALECT, "title": "cloudgpu job file", **schema, **_PROGRAM}
