"""Check that the packages of one of cloudgpu's extras are installed, in versions within its ranges."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .results import CheckResult

if TYPE_CHECKING:
    from packaging.requirements import Requirement

PACKAGE = "cloudgpu"


def check_extra(extra: str, module: str) -> Iterator[CheckResult]:
    """Yield the result for an extra. `module`: of its SDK, checked if the metadata of cloudgpu cannot be read, as in a
    copy of its source that is not installed."""
    fix = f"pip install '.[{extra}]' in a clone of cloudgpu, or the same extra of its wheel"
    try:
        wanted = _requirements(extra)
    except importlib.metadata.PackageNotFoundError:
        yield _by_module(module, fix)
        return
    found = {one.name: _version(one.name) for one in wanted}
    missing = [name for name, version in found.items() if version is None]
    if missing:
        yield CheckResult("sdk", "error", f"not installed: {', '.join(missing)}", fix, {"missing": missing})
        return
    wrong = [f"{one.name} {found[one.name]} ({one.specifier})" for one in wanted if not _is_in_range(one, found)]
    versions = {"versions": found}
    if wrong:
        message = f"versions that cloudgpu is not tested with: {', '.join(wrong)}"
        yield CheckResult("sdk", "warning", message, fix, versions)
        return
    yield CheckResult("sdk", "ok", ", ".join(f"{name} {version}" for name, version in found.items()), "", versions)


def _requirements(extra: str) -> list[Requirement]:
    """Return the requirements that only this extra adds. Raises PackageNotFoundError."""
    from packaging.requirements import Requirement

    listed = map(Requirement, importlib.metadata.requires(PACKAGE) or ())
    return [
        one
        for one in listed
        if one.marker is not None and one.marker.evaluate({"extra": extra}) and not one.marker.evaluate({"extra": ""})
    ]


def _is_in_range(requirement: Requirement, versions: dict[str, str | None]) -> bool:
    return requirement.specifier.contains(versions[requirement.name] or "", prereleases=True)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _by_module(module: str, fix: str) -> CheckResult:
    try:
        found = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        found = False
    if not found:
        return CheckResult("sdk", "error", f"not installed: the package of {module}", fix, {"missing": [module]})
    return CheckResult("sdk", "ok", f"{module} is there; its version was not compared, for cloudgpu is not installed")
