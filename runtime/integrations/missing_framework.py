"""Error for a framework that is not installed."""

from __future__ import annotations


def missing(framework: str, requirement: str, error: ImportError) -> ImportError:
    """Return the error to raise if a framework cannot be imported; `requirement`: what to pass to `pip install`."""
    if error.name is not None and error.name.partition(".")[0] != framework:
        return error  # the framework is installed, but one of its dependencies is not
    return ImportError(f"this needs {framework}: pip install '{requirement}'", name=framework)
