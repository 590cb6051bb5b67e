"""JSON Schema of job files (draft 2020-12), for editors: it accepts what the loader accepts.

Editors parse `8`, `no` and `1.10` as number and boolean while the loader takes their text, so text fields accept those
too. Checks beyond a schema (names that exist, keys that exclude each other) are left to `validate`.
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
"""A job has `run`, or an image on every machine, whose own entrypoint is the program."""
DIALECT = "https://json-schema.org/draft/2020-12/schema"


class _Generator(GenerateJsonSchema):
    """Schema generator without titles made of field names, and with defaults as a user would write them."""

    def field_title_should_be_set(self, schema: object) -> bool:  # noqa: ARG002 - Pydantic's signature
        return False

    def default_schema(self, schema: Any) -> JsonSchemaValue:  # Pydantic's signature
        """Drop defaults that are not plain JSON; `json_schema_extra` of the field states them."""
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
