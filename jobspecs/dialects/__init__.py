"""Convert job descriptions of other tools to job files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .conversion import Conversion

if TYPE_CHECKING:
    import datetime

__all__ = ["DIALECTS", "Conversion", "convert", "detect"]

DIALECTS = {
    "ai-platform": "AI Platform Training config.yaml (trainingInput)",
    "vertex": "Vertex AI custom job (workerPoolSpecs)",
}


def detect(document: object) -> str | None:
    """Return the dialect of a parsed YAML document; None for a job file or an unknown format."""
    from .conversion import camel

    if not isinstance(document, Mapping):
        return None
    names = {camel(str(key)) for key in document}
    if "trainingInput" in names:
        return "ai-platform"
    if names & {"workerPoolSpecs", "jobSpec"}:
        return "vertex"
    return None


def convert(document: Mapping[str, object], *, today: datetime.date | None = None) -> Conversion:
    """Convert a document of another tool to a job file. Raises ValueError if detect() does not know its dialect.

    GPUs that are no longer available on `today` are replaced; None: those that the tables list as retired.
    """
    dialect = detect(document)
    if dialect == "ai-platform":
        from .ai_platform import convert as convert_ai_platform

        return convert_ai_platform(document, today=today)
    if dialect == "vertex":
        from .vertex import convert as convert_vertex

        return convert_vertex(document, today=today)
    raise ValueError("this is neither an AI Platform Training file nor a Vertex AI custom job")
