"""Train machine-learning jobs on cloud, cluster or local GPUs, described by one job file.

    import datetime
    import cloudgpu

    loaded = cloudgpu.load("job.yaml")
    plan = cloudgpu.plan(loaded.spec, machine=cloudgpu.inspect_machine(), today=datetime.date.today())
    job = cloudgpu.submit(loaded, plan)

load(path, overrides=())   parse and validate a job file; return a LoadedSpec, whose `spec` is a JobSpec. Raises
                           SpecError, which lists every mistake
inspect_machine()          return CPUs, memory (GB), GPUs and hourly price of this machine, for plan()
plan(spec, *, machine, today, clouds=None)
                           return a Plan: Offers, best first, and Refusals with their reasons; machine=None refuses
                           the target `local`. Raises ValueError if `clouds` has an unknown target
submit(loaded, plan)       upload the code, store the job, start the supervisor; return a Job. Raises SubmitError.
                           start_from="JOB[@STEP]": train on from a copy of that job's checkpoint
resume(ref, overrides=())  go on with an ended job from its newest checkpoint; return the Job. code=FOLDER ships other
                           code, start_over=True drops the progress. Raises SubmitError, NotEndedError, SpecError
get_job(ref)               return the Job with this id, prefix of an id, or name. Raises NoSuchJobError
list_jobs(active_only=False, limit=50)
                           return the stored Jobs, newest first
Checkpointer(...)          save and restore a training loop, in the training program; see docs/guides/checkpointing.md

Each name is imported from its module on first use, so `import cloudgpu` alone is fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .control.jobs import Job, get_job, list_jobs, resume, submit
    from .jobspecs.diagnostics import SpecError
    from .jobspecs.loading.draft import LoadedSpec
    from .jobspecs.loading.loader import load_file as load
    from .jobspecs.models import JobSpec
    from .jobspecs.plan import Offer, Plan, Refusal
    from .jobspecs.planner.planner import plan
    from .provisioners.local.provisioner import inspect_machine
    from .runtime.checkpoint.checkpointer import Checkpointer

__version__ = "0.1.0"

__all__ = [
    "Checkpointer",
    "Job",
    "JobSpec",
    "LoadedSpec",
    "Offer",
    "Plan",
    "Refusal",
    "SpecError",
    "__version__",
    "get_job",
    "inspect_machine",
    "list_jobs",
    "load",
    "plan",
    "resume",
    "submit",
]

# public name -> (module, name in that module). A test compares this table with the imports above.
_HOMES = {
    "Checkpointer": (".runtime.checkpoint.checkpointer", "Checkpointer"),
    "Job": (".control.jobs", "Job"),
    "JobSpec": (".jobspecs.models", "JobSpec"),
    "LoadedSpec": (".jobspecs.loading.draft", "LoadedSpec"),
    "Offer": (".jobspecs.plan", "Offer"),
    "Plan": (".jobspecs.plan", "Plan"),
    "Refusal": (".jobspecs.plan", "Refusal"),
    "SpecError": (".jobspecs.diagnostics", "SpecError"),
    "get_job": (".control.jobs", "get_job"),
    "inspect_machine": (".provisioners.local.provisioner", "inspect_machine"),
    "list_jobs": (".control.jobs", "list_jobs"),
    "load": (".jobspecs.loading.loader", "load_file"),
    "plan": (".jobspecs.planner.planner", "plan"),
    "resume": (".control.jobs", "resume"),
    "submit": (".control.jobs", "submit"),
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module, there = _HOMES[name]
    value = getattr(importlib.import_module(module, __name__), there)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
