"""Code shared by the components of all clouds: import, plugin server, owner and expiry arguments.

Cloud SDKs are never imported here, and Pulumi's only inside functions: importing `cloudgpu.infra.aws` stays cheap.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pulumi

MODULES = {
    "GpuCluster": "cluster",
    "GpuFleet": "fleet",
    "GpuNetwork": "network",
    "JobBucket": "bucket",
    "MachineRole": "role",
    "OrphanReaper": "reaper",
}
"""Component -> module in each cloud's package that defines it and its arguments class."""


def component(package: str, name: str) -> object:
    """Import and return a cloud's component or arguments class. Raises AttributeError for an unknown name."""
    module = MODULES.get(name.removesuffix("Args"))
    if module is None:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{module}", package), name)


def serve(package: str) -> None:
    """Run the Pulumi plugin `cloudgpu-<cloud>` until the engine stops it. The engine's address is in sys.argv."""
    from pulumi.provider.experimental import component_provider_host

    from .. import __version__

    classes: Any = [component(package, name) for name in MODULES]
    name = f"cloudgpu-{package.rpartition('.')[2]}"
    component_provider_host(name=name, namespace="cloudgpu", version=__version__, components=classes)


def child_of(parent: pulumi.Resource, **more: Any) -> pulumi.ResourceOptions:  # ResourceOptions' arguments
    """Return options for a component's child resource, which inherits the component's providers."""
    import pulumi

    return pulumi.ResourceOptions(parent=parent, **more)


def arguments_of_part(args: Mapping[str, Any], names: Iterable[str], **more: object) -> Any:  # a part's arguments
    """Return arguments for a part: the given ones of `args` in `names`, and those of `more` that are not None."""
    given = {name: args[name] for name in names if name in args}
    return {**given, **{name: value for name, value in more.items() if value is not None}}


def owner_of(args: Mapping[str, Any]) -> str:
    """Return the `owner` argument. Default: `cloudgpu-PROJECT-STACK`."""
    import pulumi

    return args.get("owner") or f"cloudgpu-{pulumi.get_project()}-{pulumi.get_stack()}"


def expiry_of(args: Mapping[str, Any]) -> pulumi.Input[str] | None:
    """Return the `expires` argument as a tag's value, in whole epoch seconds; None: never."""
    import pulumi

    expires = args.get("expires")
    if expires is None or isinstance(expires, (int, float)):
        return None if expires is None else str(int(expires))
    return pulumi.Output.from_input(expires).apply(lambda at: str(int(at)))
