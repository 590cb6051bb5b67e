"""Where machines are attached: a network of ours, its subnetwork in one region, nothing that comes in."""

from typing import NotRequired, TypedDict

import pulumi
from pulumi_gcp import compute

from ...provisioners.gcp.resources.network import closed_name, closed_rule
from ..arguments import check_arguments
from ..components import child_of
from .common import TYPES, firewall_arguments

RANGE = "10.192.0.0/20"
"""4,092 machines."""


class GpuNetworkArgs(TypedDict):
    """Arguments of GpuNetwork."""

    region: pulumi.Input[str]
    """Google Cloud's name of the region, e.g. `us-central1`."""
    network_name: NotRequired[str]
    """Of the network and of its subnetwork; omitted: the component's name. Launches look for `cloudgpu` and for
    `cloudgpu-REGION`."""
    cidr: NotRequired[pulumi.Input[str]]
    """Addresses of the subnetwork; omitted: 10.192.0.0/20."""
    nat: NotRequired[bool]
    """Machines reach the internet by Cloud NAT, at its price by the hour; omitted: only Google's own APIs (Cloud
    Storage, Compute Engine, Artifact Registry) are reached, which costs nothing."""


class GpuNetwork(pulumi.ComponentResource):
    """A network with one subnetwork from which Google's APIs are reached without external addresses (Private Google
    Access), and the firewall rule that launches make as well: nothing comes in to machines of cloudgpu.

    Google Cloud knows no labels on networks, subnetworks, routers and firewall rules.
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
        told = {key: getattr(self, key) for key in ("network", "network_link", "subnetwork")}
        self.register_outputs(told)

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
