"""Checks of the shed for `cloudgpu check`: its key, and its benches. They only read."""

from __future__ import annotations

from collections.abc import Iterator

from cloudgpu.provisioners.checks.results import CheckRequest, CheckResult, Step

from .planner import BENCHES
from .provisioner import has_key


def steps(_request: CheckRequest) -> list[Step]:
    """Return the checks; without the key, the others are skipped."""
    return [Step("credentials", _key, is_gate=True), Step("machine", _benches)]


def _key() -> Iterator[CheckResult]:
    if has_key():
        yield CheckResult("credentials", "ok", "the key is in SHED_KEY")
    else:
        yield CheckResult("credentials", "error", "there is no key", "write the key's name into SHED_KEY")


def _benches() -> Iterator[CheckResult]:
    yield CheckResult("machine", "ok", f"{BENCHES} benches", values={"benches": BENCHES})
