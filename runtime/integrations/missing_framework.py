"""How an integration says that its framework is not there."""

from __future__ import annotations


def missing(framework: str, requirement: str, error: ImportError) -> ImportError:
    """What to raise in place of `error`, which came up while importing the framework; `requirement`: pip's."""
    if error.name is not None and error.name.partition(".")[0] != framework:
        return error  # the framework is there, but something that it needs is not: its own message is the better one
    return ImportError(f"this needs {framework}: pip install '{requirement}'", name=framework)
