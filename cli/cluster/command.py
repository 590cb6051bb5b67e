"""`cloudgpu cluster`: manage clusters, groups of machines that outlive jobs."""

from __future__ import annotations

import dataclasses
import os
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...jobspecs.targets import CLUSTER
from ..exit_codes import Exit
from ..infra.stack_run import check_account, known_backend, open_stack, readable_records, require_consent, stack_options
from ..infra.stack_view import report_text
from ..shared.errors import CommandError
from ..shared.options import json_option, yes_option
from ..shared.output import echo_json, remark, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...infra.engine.automation import Contents, Stack
    from ...infra.preflight import Finding, Report
    from ...infra.programs import Terms
    from ...infra.settings import FleetSettings
    from ...jobspecs.fleets import FleetSpec
    from ...provisioners.stacks.clusters import Cluster


@click.group()
def command() -> None:
    """Keep machines for jobs: a group of identical ones, which heals itself and whose size you say.

    \b
    cloudgpu cluster up cluster.yaml
    cloudgpu cluster scale big 8
    cloudgpu submit job.yaml --cluster big
    cloudgpu cluster status
    cloudgpu cluster extend big 7d
    cloudgpu cluster down big

    It stands in an infra stack (`cloudgpu infra up`). Its machines bill whether or not a job runs, until `down`, until
    it expires (7d after `up`, if cluster.yaml does not say otherwise), or as long as `idle` and `limits.duration` say;
    docs/guides/infra.md shows the file.
    """


_renew_option = click.option(
    "--renew", is_flag=True, help="The newest image and agent too: every machine is replaced, a few at a time."
)


@command.command(short_help="Bring up the cluster of a file, or change it.")
@click.argument("file", type=click.Path(path_type=Path))
@_renew_option
@click.option("--dry-run", is_flag=True, help="Show what would be done; make nothing.")
@stack_options
@yes_option
@json_option
def up(
    *, file: Path, renew: bool, dry_run: bool, backend: str | None, install_pulumi: bool, yes: bool, as_json: bool
) -> Exit | None:
    """Bring up the cluster of FILE, or change it to what FILE says.

    \b
    cloudgpu cluster up cluster.yaml --dry-run
    cloudgpu cluster up cluster.yaml --yes

    The best offer in a region with an infra stack is taken, and kept as long as FILE allows it. Another size changes
    nothing else; another machine type, disk or market makes another template, and machines are replaced a few at a
    time. What it costs an hour is shown, and asked for; limits.price of FILE refuses more.
    """
    from ...infra.programs import cluster_stack
    from ...jobspecs.loading.cluster_file import load_cluster_source
    from ..shared.jobfile.job_file_options import read
    from .settings import wanted_settings

    loaded = load_cluster_source(read(file))
    for problem in loaded.warnings:
        warning(f"{problem.place}: {problem.message}")
    name = loaded.cluster.name
    with open_stack(cluster_stack(name), _only_backend_of(name, backend), install=install_pulumi) as it:
        before = _settings_of(it.contents())
        _check_account(before)
        settings, terms = wanted_settings(loaded, before, it.name, renew=renew, as_json=as_json)
        if dry_run:
            it.remark_interrupted()
            report = _report(it, settings, terms, before)
            if as_json:
                echo_json({**_result_fields(settings), **report.to_json()})
            else:
                _show(settings, report)
            return Exit.IMPOSSIBLE if report.refusals else Exit.OK
        _bring_up(it, settings, terms, before, yes=yes, as_json=as_json)
    return None


@command.command(short_help="Set the number of machines of a cluster.")
@click.argument("name")
@click.argument("machines", type=click.IntRange(min=0))
@stack_options
@yes_option
@json_option
def scale(*, name: str, machines: int, backend: str | None, install_pulumi: bool, yes: bool, as_json: bool) -> None:
    """Set the number of MACHINES of the cluster NAME; 0 keeps everything but machines, and costs nothing an hour.

    \b
    cloudgpu cluster scale big 8
    cloudgpu cluster scale big 0 --yes

    The template stays as it is, unless there was one machine only: others may reach it with another one. Which machines
    go is the provider's choice: scale down while no job runs there.
    """
    from ...infra.programs import cluster_stack
    from ...jobspecs.fields import MAX_NODES
    from .settings import fleet_settings

    _check_name(name)
    if machines > MAX_NODES:
        raise click.BadParameter(f"expected at most {MAX_NODES}", param_hint="MACHINES")
    with open_stack(cluster_stack(name), _backend_of(name, backend), install=install_pulumi) as it:
        before, terms = _current_settings(it, name)
        wanted = {
            "size": machines,
            "on_demand": min(terms.on_demand, machines),
            "peers": before.fleet.peers or machines > 1,
        }
        fleet = before.fleet.model_copy(update=wanted)
        settings = fleet_settings(it.name, fleet, before.infrastructure, before, expires=before.expires)
        _bring_up(it, settings, terms, before, yes=yes, as_json=as_json)


@command.command(short_help="Let a cluster expire later, or never.")
@click.argument("name")
@click.argument("period", metavar="DURATION|never")
@stack_options
@yes_option
@json_option
def extend(*, name: str, period: str, backend: str | None, install_pulumi: bool, yes: bool, as_json: bool) -> None:
    """Let the cluster NAME expire DURATION from now, or never. No machine is replaced.

    \b
    cloudgpu cluster extend big 7d
    cloudgpu cluster extend big never --yes

    One that has expired gets its machines back, and jobs that still wait for them go on from their checkpoints. The
    next `cluster up` follows `expires` of cluster.yaml again.
    """
    from ...infra.programs import cluster_stack
    from ...jobspecs.fleets import parse_expiry
    from .expiry import next_expiry
    from .settings import fleet_settings

    _check_name(name)
    try:
        expires = next_expiry(parse_expiry(period), None)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="DURATION") from error
    with open_stack(cluster_stack(name), _backend_of(name, backend), install=install_pulumi) as it:
        before, terms = _current_settings(it, name)
        settings = fleet_settings(it.name, before.fleet, before.infrastructure, before, expires=expires)
        _bring_up(it, settings, terms, before, yes=yes, as_json=as_json)


@command.command(short_help="Remove a cluster, and all that was made for it.")
@click.argument("cluster")
@click.option("--while-jobs-run", is_flag=True, help="Even while jobs run on it: they lose their machines.")
@stack_options
@yes_option
@json_option
def down(
    *, cluster: str, while_jobs_run: bool, backend: str | None, install_pulumi: bool, yes: bool, as_json: bool
) -> None:
    """Remove CLUSTER, by its name or its file: its machines, and all that was made for them.

    \b
    cloudgpu cluster down big
    cloudgpu cluster down cluster.yaml --yes
    """
    from ...infra.preflight import check_down
    from ...infra.programs import cluster_stack
    from ...provisioners.stacks import clusters

    name = _name_of(cluster)
    with open_stack(cluster_stack(name), _backend_of(name, backend), install=install_pulumi) as it:
        if not it.exists:
            clusters.forget(name, it.backend)
            raise _unknown_cluster(name)
        _check_account(_settings_of(it.contents()))
        it.recover()
        changes = it.preview_down(keep_protected=False)
        report = check_down(changes, running=_jobs_on(name), clusters=(), force=while_jobs_run)
        if not as_json:
            click.echo(report_text(report))
        question = f"take down the cluster {name}?"
        require_consent(report, {"cluster": name}, as_json=as_json, yes=yes, question=question, default=False)
        it.down(keep_protected=False)
        clusters.forget(name, it.backend)
    if as_json:
        echo_json({"cluster": name, **report.to_json()})
    else:
        remark(f"the cluster {name} is down; nothing of it is left")


@command.command(short_help="List clusters, what runs on them and what waits.")
@click.argument("name", required=False)
@stack_options
@json_option
def status(*, name: str | None, backend: str | None, install_pulumi: bool, as_json: bool) -> None:
    """List the clusters known here, what runs on them and what waits; or read NAME anew from its backend.

    \b
    cloudgpu cluster status
    cloudgpu cluster status big --backend s3://team-stacks/cloudgpu

    How many machines answer, of how many the cluster is to have, is read from the cluster's folder in the bucket.
    """
    from ...infra.programs import cluster_stack

    if name is None:
        found = _known()
    else:
        _check_name(name)
        with open_stack(cluster_stack(name), _backend_of(name, backend), install=install_pulumi) as it:
            contents = it.contents()
            settings = _settings_of(contents)
            if settings is None:
                raise _unknown_cluster(name)
            found = [_save_record(it, contents.outputs, settings)]
    if found or as_json:
        from .view import echo_clusters

        echo_clusters(found, as_json=as_json)
    else:
        remark("no cluster is known here: `cloudgpu cluster up cluster.yaml` brings one up")


# --- up ---------------------------------------------------------------------------------------------------------------


def _bring_up(
    it: Stack, settings: FleetSettings, terms: Terms, before: FleetSettings | None, *, yes: bool, as_json: bool
) -> None:
    from ...infra.cluster_machines import put_files
    from ...infra.programs import fleet_program

    it.recover()
    report = _report(it, settings, terms, before)
    if not as_json:
        _show(settings, report)
    name, machines = settings.fleet.name, _machines(settings.fleet.size)
    question = f"bring up {name} with {machines}?" if before is None else f"change {name} as shown?"
    require_consent(report, _result_fields(settings), as_json=as_json, yes=yes, question=question)
    put_files(settings, agent=before is None or before.user_data != settings.user_data)
    cluster = _save_record(it, it.up(fleet_program(settings, terms)), settings, terms)
    if as_json:
        echo_json({**_result_fields(settings), **report.to_json(), "cluster": cluster.to_json()})
    else:
        how = f"submit FILE --cluster {name}" if cluster.fleet.size else f"cluster scale {name} MACHINES"
        remark(f"{name} is up with {machines}: cloudgpu {how}")


def _report(it: Stack, settings: FleetSettings, terms: Terms, before: FleetSettings | None) -> Report:
    from ...infra.cluster_machines import are_alike
    from ...infra.preflight import check_up
    from ...infra.programs import fleet_program
    from .expiry import check_expiry

    fleet = settings.fleet
    report = check_up(
        it.preview(fleet_program(settings, terms)),
        machines=terms.price_of(fleet),
        cap=None if terms.cap_usd_h is None else Decimal(terms.cap_usd_h),
        quota=_quota(fleet, fleet.size - (before.fleet.size if before and are_alike(before.fleet, fleet) else 0)),
    )
    losses = _losses(fleet, before.fleet if before else None)
    return dataclasses.replace(report, findings=(*report.findings, *check_expiry(settings), *losses))


def _losses(fleet: FleetSpec, before: FleetSpec | None) -> Iterator[Finding]:
    """Yield warnings about running machines that would be replaced and about the jobs on them."""
    from ...infra.preflight import Finding, jobs_run

    if before is None or not before.size:
        return
    rolls = before.template_hash != fleet.template_hash
    if rolls:
        count = f"{_machines(before.size)} {'is' if before.size == 1 else 'are'}"
        yield Finding("rolling", "warning", f"the template differs: {count} replaced, a few at a time")
    if (rolls or fleet.size < before.size) and (running := _jobs_on(fleet.name)):
        yield Finding("jobs-run", "warning", f"{jobs_run(running)}, and may lose machines")


def _quota(fleet: FleetSpec, more: int) -> str:
    """Return a text on the quota for `more` additional machines. A quota that is too small only gets a text, because
    the group then starts with fewer machines."""
    from ...provisioners import ProvisionError
    from ...provisioners.stacks.fleet_queries import check_quota

    if more <= 0:
        return "nothing more is needed"
    try:
        check_quota(fleet, more)
    except ProvisionError as error:
        return f"not enough: {error}" if error.error_class == "quota" else f"unknown: {error}"
    return "enough, according to the provider"


def _save_record(
    it: Stack, outputs: Any, settings: FleetSettings, terms: Terms | None = None
) -> Cluster:  # JSON outputs
    """Save the stack's outputs as a Cluster record on this computer, where jobs find it."""
    from ...infra.programs import TERMS, Terms
    from ...infra.settings import OUTPUT, FleetOutputs, read_output
    from ...provisioners.stacks import clusters

    made = read_output(outputs, OUTPUT, FleetOutputs.from_json)
    terms = terms or read_output(outputs, TERMS, Terms.from_json)
    cluster = clusters.Cluster(
        name=made.name,
        stack=it.name,
        backend=it.backend,
        owner=settings.owner,
        account=settings.account,
        fleet=settings.fleet,
        infrastructure=settings.infrastructure,
        group=made.group,
        fleet_dir=made.fleet_dir,
        price_usd_h=terms.share_of(settings.fleet),
        expires=settings.expires,
    )
    clusters.save(cluster)
    return cluster


# --- helpers ----------------------------------------------------------------------------------------------------------


def _settings_of(contents: Contents) -> FleetSettings | None:
    from ...infra.programs import SETTINGS
    from ...infra.settings import FleetSettings, read_output

    return read_output(contents.outputs, SETTINGS, FleetSettings.from_json) if SETTINGS in contents.outputs else None


def _current_settings(it: Stack, name: str) -> tuple[FleetSettings, Terms]:
    """Return the settings and terms of the last `up`. Raises CommandError if the cluster does not exist; RefusedError
    if it belongs to another account."""
    from ...infra.programs import TERMS, Terms
    from ...infra.settings import read_output

    contents = it.contents()
    before = _settings_of(contents)
    if before is None:
        raise _unknown_cluster(name)
    _check_account(before)
    return before, read_output(contents.outputs, TERMS, Terms.from_json)


def _check_account(before: FleetSettings | None) -> None:
    if before is not None:
        check_account(before.stack, before.fleet.cloud, before.fleet.region, before.account)


def _known() -> list[Cluster]:
    from ...provisioners.stacks import clusters

    with readable_records():
        return clusters.load_all()


def _only_backend_of(name: str, given: str | None) -> str | None:
    """Return the recorded backend of the cluster, else `given`. Raises RefusedError if they differ: a second stack
    of that name would create a second group of machines."""
    from ...infra.engine.backend import backend_of
    from ...infra.errors import RefusedError

    known = _backend_of(name, None)
    if given is not None and known is not None and backend_of(given, os.environ).url != known:
        hint = f"leave out --backend; `cloudgpu cluster down {name}` takes that one down"
        raise RefusedError(f"the cluster {name} is kept in {known}", hint)
    return known or given


def _backend_of(name: str, given: str | None) -> str | None:
    """Return the backend given on the command line, else the recorded one, else None."""
    from ...provisioners.stacks import clusters

    return known_backend(lambda: clusters.load(name)) if given is None else given


def _name_of(word: str) -> str:
    """Return the cluster's name. `word`: the name itself, or the path of a cluster file."""
    path = Path(word)
    if path.suffix not in (".yaml", ".yml") and len(path.parts) == 1:
        _check_name(word)
        return word
    from ...jobspecs.loading.cluster_file import load_cluster

    return load_cluster(path).cluster.name


def _check_name(name: str) -> None:
    """Validate the name before it becomes part of a path. Raises CommandError."""
    from ...jobspecs.fields import is_name

    if not is_name(name):
        message = f"{name!r} cannot be the name of a cluster"
        raise CommandError(message, hint="`cloudgpu cluster status` lists those known here", exit_code=Exit.USAGE)


def _unknown_cluster(name: str) -> CommandError:
    hint = "`cloudgpu cluster status` lists those known here; --backend names where another's stack is"
    return CommandError(f"there is no cluster {name} in this backend", hint=hint, exit_code=Exit.USAGE)


def _jobs_on(name: str) -> list[str]:
    """Return the ids of this store's active jobs on the cluster."""
    from ...control.jobs import list_jobs

    active = list_jobs(active_only=True, limit=None)
    return [job.id for job in active if job.row.offers[0][:2] == (CLUSTER, name)]


def _machines(number: int) -> str:
    return f"{number:,} machine" + ("" if number == 1 else "s")


def _result_fields(settings: FleetSettings) -> dict[str, Any]:
    """Return the fields that JSON output shows beside a report."""
    from .expiry import expiry_json

    return {"cluster": settings.fleet.name, "expires": expiry_json(settings.expires)}


def _show(settings: FleetSettings, report: Report) -> None:
    from .expiry import expiry_text

    click.echo(report_text(report))
    click.echo(expiry_text(settings))
