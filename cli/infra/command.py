"""`cloudgpu infra`: manage the infra stacks that jobs run in: network, role, bucket, and the function that terminates
forgotten machines."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from ...jobspecs.targets import FLEET_CLOUDS, on_host
from ..exit_codes import Exit
from ..shared.errors import CommandError
from ..shared.options import json_option, yes_option
from ..shared.output import Column, can_ask, echo_json, echo_table, remark
from .stack_run import check_account, known_backend, open_stack, readable_records, require_consent, stack_options
from .stack_view import report_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ...control.jobs import Job
    from ...infra.engine.automation import Contents, Stack
    from ...infra.preflight import Report
    from ...infra.settings import InfraSettings
    from ...provisioners.shared.infra_outputs import Infrastructure

_HEADS = (Column("cloud"), Column("region"), Column("stack", spare=1), Column("job dir"))


@click.group()
def command() -> None:
    """Make, show and remove what stands in a cloud before any job, as code: Pulumi stacks.

    \b
    cloudgpu infra preview --cloud aws --region us-east-1
    cloudgpu infra up --cloud aws --region us-east-1
    cloudgpu infra status
    cloudgpu infra down --cloud aws --region us-east-1

    A stack is a network in all zones of a region, a role for machines with no more rights than they need, a bucket
    for job dirs, and a function that terminates expired machines. Jobs use it by themselves: those
    that name no job_dir get one in its bucket. docs/guides/infra.md lists what it costs and which permissions it needs.
    """


def _place_options(function: Any) -> Any:  # a decorator
    function = click.option("--region", required=True, metavar="REGION", help="One stack for each region.")(function)
    return click.option("--cloud", required=True, type=click.Choice(FLEET_CLOUDS), help="Whose.")(function)


_bucket_option = click.option(
    "--bucket",
    metavar="NAME",
    help="Use this one, which exists, instead of making one; azure: GROUP/ACCOUNT/CONTAINER.",
)


def _secret_options(function: Any) -> Any:  # a decorator
    function = click.option("--no-secrets", is_flag=True, help="Machines may read none any more.")(function)
    return click.option(
        "--secret",
        "secrets",
        multiple=True,
        metavar="REFERENCE",
        help="A secret that machines may read, such as gcp-secretmanager://wandb. Give all of them: they replace those "
        "of the last `up`, which is the default.",
    )(function)


@command.command(short_help="Make what is missing, change what differs; asks first.")
@_place_options
@_bucket_option
@_secret_options
@stack_options
@yes_option
@json_option
def up(
    *,
    cloud: str,
    region: str,
    bucket: str | None,
    secrets: tuple[str, ...],
    no_secrets: bool,
    backend: str | None,
    install_pulumi: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Make what is missing, change what differs; shows what would be done first, and asks.

    \b
    cloudgpu infra up --cloud gcp --region us-central1
    cloudgpu infra up --cloud aws --region us-east-1 --bucket my-checkpoints --yes
    cloudgpu infra up --cloud aws --region us-east-1 --secret aws-secretsmanager://team/wandb

    It may be interrupted, or killed, and given again: it goes on from there. The bucket is never deleted nor replaced.
    """
    stack, settings_of = _stack_and_settings(cloud, region, bucket, _wanted_secrets(cloud, region, secrets, no_secrets))
    with open_stack(stack, _backend_of(cloud, region, backend), install=install_pulumi) as it:
        settings = settings_of(it.contents())
        from ...infra.programs import infra_program

        program = infra_program(settings)
        it.recover()
        report = _check(it.preview(program))
        _show(report, as_json=as_json)
        require_consent(report, {"stack": stack}, as_json=as_json, yes=yes, question=f"bring up {stack}?")
        known = _save_record(it, it.up(program))
    if as_json:
        echo_json({"stack": stack, **report.to_json(), "infrastructure": known.to_json()})
    else:
        remark(f"{stack} is up: jobs in {cloud} {region} that name no job_dir get one in {known.job_dir}")


@command.command(short_help="Show what `up` would do and what it would cost.")
@_place_options
@_bucket_option
@_secret_options
@click.option(
    "--refresh/--no-refresh",
    default=True,
    show_default=True,
    help="Compare with what the cloud has, or with what the stack remembers.",
)
@click.option("--expect-no-changes", is_flag=True, help="Exit code 1 if `up` would change anything.")
@stack_options
@json_option
def preview(
    *,
    cloud: str,
    region: str,
    bucket: str | None,
    secrets: tuple[str, ...],
    no_secrets: bool,
    refresh: bool,
    expect_no_changes: bool,
    backend: str | None,
    install_pulumi: bool,
    as_json: bool,
) -> Exit:
    """Show what `up` would do, what it would cost an hour, and what forbids it; nothing is made.

    \b
    cloudgpu infra preview --cloud azure --region eastus --json
    cloudgpu infra preview --cloud aws --region us-east-1 --expect-no-changes

    The second is for CI: it fails when the stack was changed by hand. Exit code 4: a check refuses it; 1: with
    --expect-no-changes, something would be changed.
    """
    stack, settings_of = _stack_and_settings(cloud, region, bucket, _wanted_secrets(cloud, region, secrets, no_secrets))
    with open_stack(stack, _backend_of(cloud, region, backend), install=install_pulumi) as it:
        from ...infra.programs import infra_program

        settings = settings_of(it.contents())
        it.remark_interrupted()
        report = _check(it.preview(infra_program(settings), refresh=refresh))
    if as_json:
        echo_json({"stack": stack, **report.to_json()})
    else:
        click.echo(report_text(report))
    if report.refusals:
        return Exit.IMPOSSIBLE
    return Exit.FAILED if expect_no_changes and report.changes_anything else Exit.OK


@command.command(short_help="Remove what `up` made, but for the bucket.")
@_place_options
@stack_options
@click.option("--while-jobs-run", is_flag=True, help="Even while jobs run there: they lose their network.")
@click.option("--delete-bucket", is_flag=True, help="The bucket as well, with every checkpoint in it.")
@click.option("--yes-delete-bucket", metavar="NAME", help="Its name, for --delete-bucket without a terminal.")
@yes_option
@json_option
def down(
    *,
    cloud: str,
    region: str,
    backend: str | None,
    install_pulumi: bool,
    while_jobs_run: bool,
    delete_bucket: bool,
    yes_delete_bucket: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Remove what `up` made, but for the bucket, which stays with all that is in it.

    \b
    cloudgpu infra down --cloud aws --region us-east-1
    cloudgpu infra down --cloud aws --region us-east-1 --delete-bucket --yes-delete-bucket NAME

    It is refused while jobs run there, or clusters stand there. With --delete-bucket the bucket goes as well, once its
    name is typed or given. A bucket that `up` did not make is never deleted.
    """
    from ...infra.engine.events import Change
    from ...infra.preflight import check_down
    from ...infra.programs import infra_stack
    from ...provisioners.shared import infra_outputs

    _check_region(cloud, region)
    stack = infra_stack(cloud, region)
    with open_stack(stack, _backend_of(cloud, region, backend), install=install_pulumi) as it:
        contents = it.contents()
        if not it.exists:
            raise CommandError(f"there is no stack {stack} in this backend", hint=_HINT_BACKEND, exit_code=Exit.USAGE)
        settings = _settings(stack, cloud, region, None, contents)
        changes = it.preview_down(keep_protected=True)
        if delete_bucket:
            changes += [Change("delete", one.kind, one.name) for one in contents.resources if one.protected]
        running = _jobs_there(cloud, region, contents)
        clusters = _clusters_there(cloud, region)
        report = check_down(changes, running=running, clusters=clusters, force=while_jobs_run, with_data=delete_bucket)
        _show(report, as_json=as_json)
        require_consent(
            report, {"stack": stack}, as_json=as_json, yes=yes, question=f"take down {stack}?", default=False
        )
        if delete_bucket:
            _unprotect(it, settings, contents, yes_delete_bucket)
        infra_outputs.forget(cloud, region, it.backend)
        left = it.down(keep_protected=not delete_bucket)
    if as_json:
        echo_json({"stack": stack, **report.to_json(), "left": [one.id for one in left.resources]})
    elif left.resources:
        remark(f"{stack} is down, but for the bucket {', '.join(_buckets(left))}")
    else:
        remark(f"{stack} is down; nothing of it is left")


_HINT_BACKEND = "--backend or CLOUDGPU_INFRA_BACKEND names the one it was brought up with; `cloudgpu infra status`"


@command.command(short_help="List the stacks known here, or read one anew.")
@click.option(
    "--cloud", type=click.Choice(FLEET_CLOUDS), help="Ask this stack itself, with --region; else all known here."
)
@click.option("--region", metavar="REGION", help="Of the stack.")
@stack_options
@json_option
def status(*, cloud: str | None, region: str | None, backend: str | None, install_pulumi: bool, as_json: bool) -> None:
    """List the stacks that jobs of this computer use; or read one anew from its backend, such as a colleague's.

    \b
    cloudgpu infra status
    cloudgpu infra status --cloud aws --region us-east-1 --backend s3://team-stacks/cloudgpu
    """
    if cloud is None and region is None:
        if backend is not None:
            raise click.UsageError("--backend goes with --cloud and --region")
        _list(as_json=as_json)
        return
    if cloud is None or region is None:
        raise click.UsageError("--cloud goes with --region, and --region with --cloud")
    from ...infra.programs import infra_stack
    from ...provisioners.shared import infra_outputs

    _check_region(cloud, region)
    stack = infra_stack(cloud, region)
    with open_stack(stack, _backend_of(cloud, region, backend), install=install_pulumi) as it:
        contents = it.contents()
        known = _save_record(it, contents.outputs) if _is_usable(contents) else None
        if known is None:
            infra_outputs.forget(cloud, region, it.backend)
    if as_json:
        echo_json(
            {
                "stack": stack,
                "resources": [{"kind": one.kind, "name": one.name, "id": one.id} for one in contents.resources],
                "interrupted": list(contents.pending),
                "infrastructure": known and known.to_json(),
            }
        )
    else:
        _say_contents(stack, contents, known)


def _is_usable(contents: Contents) -> bool:
    """Return whether the stack is usable: its network exists. Outputs alone do not prove it, as they stay after a
    `down` that keeps the bucket."""
    from ...infra.settings import OUTPUT

    network = str((contents.outputs.get(OUTPUT) or {}).get("network") or "")
    return bool(network) and any(one.id == network or one.id.endswith(f"/{network}") for one in contents.resources)


def _say_contents(stack: str, contents: Contents, known: Infrastructure | None) -> None:
    if known:
        state = "is up"
    elif contents.resources and all(one.protected for one in contents.resources):
        state = "is down, but for its bucket"
    else:
        state = "is not complete: `cloudgpu infra up` goes on" if contents.resources else "is not there"
    click.echo(f"{stack} {state}")
    if contents.resources:
        heads = (Column("what"), Column("kind", least=16), Column("id", least=16))
        echo_table(heads, [[one.name, one.kind, one.id] for one in contents.resources])
    for name in contents.pending:
        remark(f"interrupted while it was made: {name}; `cloudgpu infra up` goes on")


def _list(*, as_json: bool) -> None:
    known = _known()
    if as_json:
        echo_json([one.to_json() for one in known])
    elif known:
        echo_table(_HEADS, [[one.cloud, one.region, one.stack, one.job_dir] for one in known])
    else:
        remark("no stack is known here: `cloudgpu infra up --cloud CLOUD --region REGION` makes one")


def _known() -> list[Infrastructure]:
    from ...provisioners.shared import infra_outputs

    with readable_records():
        return infra_outputs.load_all()


def _backend_of(cloud: str, region: str, given: str | None) -> str | None:
    """Return the backend given on the command line, else the recorded one, else None."""
    from ...provisioners.shared import infra_outputs

    return known_backend(lambda: infra_outputs.load(cloud, region)) if given is None else given


# --- stack settings ---------------------------------------------------------------------------------------------------


def _wanted_secrets(cloud: str, region: str, given: tuple[str, ...], none: bool) -> dict[str, str] | None:
    """Return the secrets to grant, as InfraSettings has them; None: those of the last `up`.

    Raises UsageError, ProvisionError."""
    if not given:
        return {} if none else None
    if none:
        raise click.UsageError("--secret and --no-secrets exclude each other")
    from ...jobspecs.secret_references import parse
    from ...provisioners.stacks.fleet_queries import secrets_of

    _check_region(cloud, region)
    for one in given:
        try:
            parse(one)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--secret") from error
    return secrets_of(cloud, region, given)


def _stack_and_settings(
    cloud: str, region: str, bucket: str | None, secrets: Mapping[str, str] | None
) -> tuple[str, Callable[[Contents], InfraSettings]]:
    """Return the stack's name and a function that derives its settings from its contents. Raises CommandError for an
    unknown region, BadRequestError for an invalid bucket name."""
    from ...infra.names import check_bucket
    from ...infra.programs import infra_stack

    _check_region(cloud, region)
    if bucket is not None:
        check_bucket(cloud, bucket)
    stack = infra_stack(cloud, region)

    def settings(contents: Contents) -> InfraSettings:
        found = _settings(stack, cloud, region, bucket, contents)
        return found if secrets is None else replace(found, secrets=secrets)

    return stack, settings


def _settings(stack: str, cloud: str, region: str, bucket: str | None, contents: Contents) -> InfraSettings:
    """Return the stack's settings: the existing ones, or new ones. Raises RefusedError if the account or bucket of
    an existing stack would change."""
    from ...control.submit.submission import owner_name
    from ...infra.errors import RefusedError
    from ...infra.programs import SETTINGS
    from ...infra.settings import InfraSettings, read_output
    from ...provisioners.stacks.fleet_queries import account_of, boundary_of

    if SETTINGS not in contents.outputs:  # no stack yet, or its first `up` failed
        return InfraSettings(
            cloud=cloud,
            region=region,
            stack=stack,
            owner=owner_name(),
            account=account_of(cloud, region),
            bucket=bucket,
            adopt=bucket is not None,
            boundary=boundary_of(cloud),
        )
    old = read_output(contents.outputs, SETTINGS, InfraSettings.from_json)
    check_account(stack, cloud, region, old.account)
    if bucket not in (None, old.bucket):
        message = f"{stack} has the bucket {old.bucket or 'that it made'}: it cannot be given {bucket}"
        raise RefusedError(message, "take it down first, or leave out --bucket")
    # The old boundary stays if the environment names none: an unset variable must not drop a guard.
    return replace(old, protect=True, boundary=boundary_of(cloud) or old.boundary)


def _check_region(cloud: str, region: str) -> None:
    from ...jobspecs import catalog
    from ...jobspecs.suggest import did_you_mean

    if region not in catalog.regions(cloud):
        hint = did_you_mean(region, catalog.regions(cloud)) or "`cloudgpu gpus` lists regions with GPUs"
        raise CommandError(f"{cloud} has no region {region!r} with GPUs", hint=hint, exit_code=Exit.USAGE)


def _check(changes: Any) -> Report:  # list[Change]
    from ...infra.preflight import check_up

    return check_up(changes)


def _show(report: Report, *, as_json: bool) -> None:
    if not as_json:
        click.echo(report_text(report))


def _save_record(it: Stack, outputs: Mapping[str, object]) -> Infrastructure:
    from ...infra.settings import OUTPUT, read_output
    from ...provisioners.shared import infra_outputs

    known = replace(read_output(outputs, OUTPUT, infra_outputs.Infrastructure.from_json), backend=it.backend)
    infra_outputs.save(known)
    return known


# --- checks before down -----------------------------------------------------------------------------------------------


def _jobs_there(cloud: str, region: str, contents: Contents) -> list[str]:
    """Return the ids of this store's active jobs that use the stack's region or its bucket."""
    from ...control.jobs import list_jobs
    from ...infra.settings import OUTPUT

    job_dir = str((contents.outputs.get(OUTPUT) or {}).get("job_dir") or "")

    def uses(job: Job) -> bool:
        dirs = [job.job_dir, *job.row.policy.job_dirs.values()]
        in_bucket = bool(job_dir) and any(one.startswith(f"{job_dir.rstrip('/')}/") for one in dirs)
        return in_bucket or (job.offer.cloud in on_host(cloud) and job.offer.region == region)

    return [job.id for job in list_jobs(active_only=True, limit=None) if uses(job)]


def _clusters_there(cloud: str, region: str) -> list[str]:
    from ...provisioners.stacks import clusters

    with readable_records():
        return [one.name for one in clusters.load_all() if (one.cloud, one.region) == (cloud, region)]


def _unprotect(stack: Stack, settings: InfraSettings, contents: Contents, given: str | None) -> None:
    """Update the stack so that its bucket may be deleted, after the bucket's name was confirmed."""
    from ...infra.errors import BadRequestError
    from ...infra.programs import infra_program

    buckets = _buckets(contents)
    if not buckets:
        raise BadRequestError(f"{stack.name} has no bucket of its own to delete", "leave out --delete-bucket")
    name = given
    if name is None:
        if not can_ask():
            raise BadRequestError("nothing was done: --delete-bucket needs the bucket's name", _confirm_hint(buckets))
        name = click.prompt(f"every checkpoint in {', '.join(buckets)} is deleted; type its name", err=True)
    if name not in buckets:
        raise BadRequestError(f"nothing was done: the bucket is not called {name}", _confirm_hint(buckets))
    stack.up(infra_program(replace(settings, protect=False)))


def _confirm_hint(buckets: list[str]) -> str:
    return f"add --yes-delete-bucket {buckets[0]}"


def _buckets(contents: Contents) -> list[str]:
    """Return the names of the stack's own buckets (azure: storage accounts)."""
    from ...infra.preflight import BUCKETS

    return [one.id.rpartition("/")[2] for one in contents.resources if one.kind in BUCKETS]
