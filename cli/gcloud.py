"""`cloudgpu submit` with the flags of `gcloud ai-platform jobs submit training`.

    cloudgpu submit my_job --config config.yaml --master-accelerator count=1,type=nvidia-tesla-t4 -- --epochs 10

The table of flags and what they mean is jobspecs/dialects/gcloud_flags.py; here they meet the rest of the command line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .specfile import given_flag, overrides

if TYPE_CHECKING:
    from ..jobspecs.loader import LoadedSpec

OWN_FLAGS = ("--job-dir", "--region")
"""Both commands have them: they are ours, and handed on."""


def load(
    ctx: click.Context, file: Path, config: Path | None, flags: Mapping[str, str], args: Sequence[str] | None
) -> LoadedSpec | None:
    """The job that a gcloud command line stands for; None: it is none. Raises SpecError.

    The one positional word is the job's name, as with gcloud, unless it names a file: then that is the config.
    """
    job: str | None = None
    if config is not None or (flags and not _looks_like_a_file(file)):
        job = str(file)
    else:
        config = file
    if not flags and job is None and given_flag(ctx, "--job-dir") is None:
        return None
    return _load(ctx, config, job, flags, args)


def _load(
    ctx: click.Context, config: Path | None, job: str | None, flags: Mapping[str, str], args: Sequence[str] | None
) -> LoadedSpec | None:
    from ..jobspecs.dialects import detect, gcloud_flags
    from ..jobspecs.loader import load_conversion
    from ..jobspecs.source import read_source
    from ..jobspecs.yaml_reader import read_yaml

    document = None if config is None else read_yaml(read_source(config))
    if document is not None and detect(document.value) != "ai-platform":
        if not flags and job is None:
            return None
        flag = next(iter(flags), "--config")
        raise click.UsageError(
            f"{flag} changes a configuration of AI Platform Training (trainingInput), which {config} is not; "
            "use --set for a job file",
            ctx,
        )
    # Given to the dialect, the job dir also reaches the program as its own --job-dir.
    shared = {flag: value for flag in OWN_FLAGS if isinstance(value := given_flag(ctx, flag), str)}
    conversion = gcloud_flags.apply(
        None if document is None else document.value,
        {**flags, **shared},
        args,
        job=job,
        folder=None if config is None else str(config.parent),
    )
    return load_conversion(
        conversion,
        document=document,
        overrides=overrides(ctx, without=tuple(shared)),
        base=Path.cwd() if config is None else config.absolute().parent,
    )


def _looks_like_a_file(word: Path) -> bool:
    return word.suffix in {".yaml", ".yml", ".json"} or len(word.parts) > 1 or word.is_file()
