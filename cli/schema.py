"""`cloudgpu schema`: print the JSON Schema of job files, for editors."""

from __future__ import annotations

import click


@click.command()
def command() -> None:
    """Print the JSON Schema of job files (draft 2020-12).

    \b
    cloudgpu schema > job.schema.json
    Then, as the first line of a job file, for editors with a YAML language server:
    # yaml-language-server: $schema=job.schema.json
    """
    import json

    from ..jobspecs.schema import job_schema

    click.echo(json.dumps(job_schema(), indent=2))
