"""Network for machines: a VPC network with a subnetwork in one region and no inbound access."""

from typing import NotRequired, TypedDict

import pulumi
from pulumi_gcp import compute

from ...provisioners.gcp.resources.network import closed_name, closed_rule
from ..arguments import check_arguments
from ..components import child_of
from .common import TYPES, firewall_arguments

RANGE = "10.192.0.0/20"
"""Address range of the subnetwork: room for 4,092 machines."""


class GpuNetworkArgs(TypedDict):
    """Arguments of GpuNetwork."""

    region: pulumi.Input[str]
    """Name of the Google Cloud region, e.g. `us-central1`."""
    network_name: NotRequired[str]
    """Name of the network and its subnetwork. Default: the component's name. Launches search for `cloudgpu` and
    `cloudgpu-REGION`."""
    cidr: NotRequired[pulumi.Input[str]]
    """Address range of the subnetwork. Default: 10.192.0.0/20."""
    nat: NotRequired[bool]
    """Give machines internet access through Cloud NAT, at its hourly price. Default: false, they reach only Google's
    APIs (Cloud Storage, Compute Engine, Artifact Registry), which is free."""


class GpuNetwork(pulumi.ComponentResource):
    """VPC network with one subnetwork with Private Google Access (Google's APIs without external addresses).

    It includes the firewall rule that launches create as well, which blocks all inbound traffic to cloudgpu's machines.
    Networks, subnetworks, routers and firewall rules have no labels in Google Cloud.
    """

    network: pulumi.Output[str]
    """Name of the network."""
    network_link: pulumi.Output[str]
    """Self link of the network."""
    subnetwork: pulumi.Output[str]
    """Self link of the subnetwork, which spans all zones of the region."""

    def __init__(self, name: str, args: GpuNetworkArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        check_arguments("GpuNetwork", name, args, GpuNetworkArgs)
        super().__init__(f"{TYPES}:GpuNetwork", name, {}, opts)
        called = args.get("network_name", name)
        network = compute.Network(
            f"{name}-network",
            name=called,
            description="Machines of cloudgpu",
            auto_create_subnetworks=False,
            opts=child_of(self),
        )
        subnetwork = compute.Subnetwork(
            f"{name}-subnetwork",
            name=called,
            network=network.self_link,
            region=args["region"],
            ip_cidr_range=args.get("cidr", RANGE),
            private_ip_google_access=True,
            opts=child_of(self),
        )
        rule = closed_rule(closed_name(called), "")
        compute.Firewall(
            f"{name}-closed",
            **firewall_arguments({**rule, "network": network.self_link}),
            opts=child_of(self),
        )
        if args.get("nat"):
            self._nat(name, called, args["region"], network)
        self.network, self.network_link, self.subnetwork = network.name, network.self_link, subnetwork.self_link
        outputs = {key: getattr(self, key) for key in ("network", "network_link", "subnetwork")}
        self.register_outputs(outputs)

    def _nat(self, name: str, called: str, region: pulumi.Input[str], network: compute.Network) -> None:
        router = compute.Router(
            f"{name}-router", name=called, region=region, network=network.self_link, opts=child_of(self)
        )
        compute.RouterNat(
            f"{name}-nat",
            name=called,
            router=router.name,
            region=region,
            nat_ip_allocate_option="AUTO_ONLY",
            source_subnetwork_ip_ranges_to_nat="ALL_SUBNETWORKS_ALL_IP_RANGES",
            opts=child_of(self),
        )
