"""The JSON Schema of job files (draft 2020-12), for editors: it accepts what the loader accepts.

YAML shows `8`, `no` and `1.10` to an editor as number and boolean where the loader takes the text, so a text field
accepts those too. What no schema can say (names that exist, keys that exclude each other) is left to `validate`.
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
"""A job says what to run, or has an image on every machine, whose own entrypoint is the program."""
DIALECT = "https://json-schema.org/draft/2020-12/schema"


class _Generator(GenerateJsonSchema):
    """Pydantic's, without the titles it makes of field names, and with defaults as a user would write them."""

    def field_title_should_be_set(self, schema: object) -> bool:  # noqa: ARG002 - Pydantic's signature
        return False

    def default_schema(self, schema: Any) -> JsonSchemaValue:  # Pydantic's signature
        """The fields' own `json_schema_extra` says the default where it is not plain JSON."""
        generated = super().default_schema(schema)
        if not isinstance(schema.get("default"), str | int | None) or generated.get("default", 0) is None:
            generated.pop("default", None)
        return generated


def job_schema() -> dict[str, Any]:
    """The schema of a job file."""
    schema = JobSpec.model_json_schema(schema_generator=_Generator)
    for definition in (schema, *schema["$defs"].values()):
        definition.pop("title", None)
    return {"$schema": DIALECT, "title": "cloudgpu job file", **schema, **_PROGRAM}
