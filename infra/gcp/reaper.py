"""Scheduled workflow that deletes expired machines: the safety net when no other cleanup runs."""

from pathlib import Path
from typing import NotRequired, TypedDict

import pulumi
from pulumi_gcp import cloudscheduler, projects, serviceaccount, workflows

from ..arguments import check_arguments
from ..components import child_of
from .common import TYPES, labels_of
from .role import GROUPS, MACHINES, Right, grant

WORKFLOW = Path(__file__).with_name("reaper.yaml")
RIGHTS = (
    Right("find", ("compute.instances.list", "compute.instanceGroupManagers.list"), ""),
    MACHINES,
    GROUPS._replace(permissions=("compute.instanceGroupManagers.update",)),
    Right("tell", ("logging.logEntries.create",), ""),
)
"""Permissions of the workflow: list all machines and groups of the project, delete only those with cloudgpu's name
prefix, and log failures (sys.log; source: Workflows' documentation, "Grant a workflow permission to access Google Cloud
resources")."""
_RUN = "roles/workflows.invoker"
_EXECUTIONS = "https://workflowexecutions.googleapis.com/v1/"


class OrphanReaperArgs(TypedDict):
    """Arguments of OrphanReaper."""

    project: pulumi.Input[str]
    """Id of the project; machines in all regions of the project are checked."""
    region: pulumi.Input[str]
    """Region of the schedule and the workflow, which must have Cloud Scheduler and Workflows."""
    account_id: str
    """Id of the reaper's service account, before the @: 6 to 30 of a-z, 0-9 and `-`."""
    owner: NotRequired[str]
    """Value of the label `cloudgpu-owner`. Default: derived from the project's and stack's names."""
    labels: NotRequired[dict[str, pulumi.Input[str]]]
    """Additional labels of the workflow; a schedule has none."""
    every_minutes: NotRequired[int]
    """Interval between runs in minutes, 1 to 59. Default: 30."""


class OrphanReaper(pulumi.ComponentResource):
    """Scheduled workflow that cleans up cloudgpu's expired resources of any owner.

    Groups (GpuFleet's `expires`) are scaled to zero. Instances whose label `cloudgpu-expires` is in the past are
    deleted with their disks, through their group if they belong to one, which would otherwise recreate them.
    """

    workflow: pulumi.Output[str]
    """Id of the workflow."""

    def __init__(self, name: str, args: OrphanReaperArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        check_arguments("OrphanReaper", name, args, OrphanReaperArgs)
        super().__init__(f"{TYPES}:OrphanReaper", name, {}, opts)
        account = self._account(name, args)
        workflow = workflows.Workflow(
            f"{name}-workflow",
            name=args["account_id"],
            project=args["project"],
            region=args["region"],
            description="Ends machines and groups of cloudgpu that have expired",
            service_account=account.email,
            labels=labels_of(args),
            source_contents=WORKFLOW.read_text(encoding="utf-8"),
            deletion_protection=False,
            opts=child_of(self),
        )
        cloudscheduler.Job(
            f"{name}-schedule",
            name=args["account_id"],
            project=args["project"],
            region=args["region"],
            schedule=f"*/{int(args.get('every_minutes', 30))} * * * *",
            time_zone="Etc/UTC",
            attempt_deadline="180s",
            http_target=cloudscheduler.JobHttpTargetArgs(
                uri=pulumi.Output.concat(_EXECUTIONS, workflow.id, "/executions"),
                http_method="POST",
                oauth_token=cloudscheduler.JobHttpTargetOauthTokenArgs(service_account_email=account.email),
            ),
            opts=child_of(self),
        )
        self.workflow = workflow.id
        self.register_outputs({"workflow": self.workflow})

    def _account(self, name: str, args: OrphanReaperArgs) -> serviceaccount.Account:
        account = serviceaccount.Account(
            f"{name}-account",
            account_id=args["account_id"],
            project=args["project"],
            display_name="Deletes expired machines of cloudgpu",
            opts=child_of(self),
        )
        for right in RIGHTS:
            grant(self, name, args, account.member, right)
        projects.IAMMember(
            f"{name}-run", project=args["project"], role=_RUN, member=account.member, opts=child_of(self)
        )
        return account
