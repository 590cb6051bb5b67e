"""Check what works from this computer: the checks of several targets at the same time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

from ..jobspecs.catalog.machines import regions as regions_of
from ..jobspecs.configuration.effective import configured_defaults
from ..jobspecs.configuration.files import ConfigError
from ..jobspecs.targets import WITH_TABLES, info, listed
from ..provisioners import can_launch, is_set_up
from ..provisioners.checks.results import CheckRequest, CheckResult, Step, from_unexpected
from ..provisioners.checks.runner import run_steps
from ..provisioners.shared import infra_outputs
from ..provisioners.shared.infra_outputs import Infrastructure
from ..provisioners.target import code_of, target_of

State = Literal["ok", "warning", "error", "not set up"]


@dataclass(frozen=True, slots=True)
class TargetReport:
    """Results of a target's checks."""

    target: str
    state: State
    """not set up: its SDK or credentials are missing."""
    results: tuple[CheckResult, ...]
    seconds: float

    @property
    def works(self) -> bool:
        """Return whether jobs can run there, as far as it was checked."""
        return self.state in ("ok", "warning")


def targets_to_check() -> list[str]:
    """Return all targets that jobs can be submitted to, in display order."""
    return [name for name in listed() if can_launch(name)]


def unknown_regions(targets: Sequence[str], regions: Sequence[str]) -> list[str]:
    """Return the regions that none of the targets has by the tables. A single target is asked itself: its tables may
    lack a new region."""
    tables = [regions_of(target) for target in targets if info(target).has_tables]
    if len(tables) == 1 == len(targets):
        return []
    return [region for region in regions if not any(region in known for known in tables)]


class Defaults(NamedTuple):
    """Configured defaults of job files."""

    regions: tuple[str, ...] = ()
    job_dirs: Mapping[str, str] = MappingProxyType({})
    """Target -> URL; "": of all targets."""

    def job_dir_of(self, target: str) -> str:
        """Return the job dir of jobs on a target; "": none is configured, or its machines cannot reach it."""
        url = self.job_dirs.get(target) or self.job_dirs.get("", "")
        return url if url.partition("://")[0] in info(target).schemes else ""


def configured(folder: Path) -> Defaults:
    """Return the defaults of job files in a folder. Raises ConfigError, OSError."""
    regions: tuple[str, ...] = ()
    job_dirs: Mapping[str, str] = {}
    for key, value, source in configured_defaults(folder):
        if key == "resources.region":
            regions = tuple(value) if isinstance(value, list) else (value,)
            _require_texts(regions, f"{source}: {key} must be a region, or a list of regions")
        elif key == "job_dir":
            job_dirs = value if isinstance(value, Mapping) else {"": value}
            _require_texts(job_dirs.values(), f"{source}: {key} must be a URL, or a table of URLs by cloud")
    return Defaults(regions, job_dirs)


def _require_texts(values: Iterable[object], otherwise: str) -> None:
    if not all(isinstance(value, str) for value in values):
        raise ConfigError(otherwise, "`cloudgpu config edit` checks the file")


def check(
    targets: Sequence[str],
    request: CheckRequest,
    timeout_s: float,
    progress: Callable[[TargetReport], None] = lambda _: None,
    defaults: Defaults | None = None,
) -> list[TargetReport]:
    """Return the reports of targets, in their order; `progress` gets each as soon as it is complete.

    Regions and job dirs that the request does not name are the `defaults`, else those of infra stacks. Reads only.
    Takes at most about `timeout_s`, however many targets there are.
    """
    pool = ThreadPoolExecutor(max(len(targets), 1), "cloudgpu-check")
    try:
        futures = [pool.submit(_check, target, request, timeout_s, defaults or Defaults()) for target in targets]
        for future in as_completed(futures):
            progress(future.result())
        return [future.result() for future in futures]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _check(target: str, request: CheckRequest, timeout_s: float, defaults: Defaults) -> TargetReport:
    begun = time.monotonic()
    try:
        results = _results(target, request, timeout_s, defaults)
    except Exception as error:  # noqa: BLE001 - the other targets are still reported
        results = [from_unexpected("set_up", error)]
    return TargetReport(target, _state(target, results), tuple(results), time.monotonic() - begun)


def _results(target: str, request: CheckRequest, timeout_s: float, defaults: Defaults) -> list[CheckResult]:
    stacks: list[Infrastructure] = []
    unreadable: list[CheckResult] = []
    try:
        stacks = infra_outputs.load_all(info(target).host or target)
    except ValueError as error:  # a stack's record, with the command that mends it
        unreadable.append(CheckResult("job_dir", "error", str(error)))
    mine = _of_target(target, request, stacks, defaults)
    return [*run_steps(_steps(target, mine), timeout_s), *unreadable]


def _of_target(
    target: str, request: CheckRequest, stacks: Sequence[Infrastructure], defaults: Defaults
) -> CheckRequest:
    """Return the request with the regions and job dirs that concern a target."""
    about = info(target)
    named = tuple(url for url in request.job_dirs if url.partition("://")[0] in about.schemes)
    asked = tuple(region for region in request.regions if about.has_tables and _may_have(target, region))
    usual = tuple(region for region in defaults.regions if about.has_tables and region in regions_of(target))
    regions = asked or usual or tuple(dict.fromkeys(stack.region for stack in stacks))
    url = defaults.job_dir_of(target)
    job_dirs = named or ((url,) if url else tuple(dict.fromkeys(one.job_dir for one in stacks if one.job_dir)))
    return replace(request, regions=regions, job_dirs=job_dirs, stacks=tuple(stacks))


def _may_have(target: str, region: str) -> bool:
    """Return whether a region may be the target's: it is in its tables, or in those of no other."""
    return region in regions_of(target) or not any(region in regions_of(other) for other in WITH_TABLES)


def _steps(target: str, request: CheckRequest) -> list[Step]:
    found = target_of(target)
    if found is not None and found.check:
        steps: list[Step] = code_of(target, found.check)(request)
        return steps
    return [Step("set_up", partial(_set_up, target, found.setup_hint if found is not None else ""))]


def _set_up(target: str, hint: str) -> list[CheckResult]:
    """Return the only check of a target without checks of its own."""
    if is_set_up(target):
        return [CheckResult("set_up", "ok", "it is set up; nothing more can be checked")]
    return [CheckResult("set_up", "error", "it is not set up here", hint)]


def _state(target: str, results: Sequence[CheckResult]) -> State:
    statuses = {one.status for one in results}
    if "error" in statuses:
        try:
            return "error" if is_set_up(target) else "not set up"
        except Exception:  # noqa: BLE001 - it is set up, wrongly, as the results say
            return "error"
    return "warning" if "warning" in statuses else "ok"
