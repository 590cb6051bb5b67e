"""What the components of all clouds have in common: how they are found and served, who owns what they make, until when.

Nothing of a cloud's SDK, and Pulumi's own only where it is used: `cloudgpu.infra.aws` is imported for its names.
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
"""Each cloud's components -> the module of its package that has one, and the class of its arguments."""


def component(package: str, name: str) -> object:
    """A cloud's component, or its class of arguments, imported now. Raises AttributeError, as a module does."""
    module = MODULES.get(name.removesuffix("Args"))
    if module is None:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{module}", package), name)


def serve(package: str) -> None:
    """Be the Pulumi plugin of a cloud, `cloudgpu-<cloud>`, until the engine ends it: the address is in sys.argv."""
    from pulumi.provider.experimental import component_provider_host

    from .. import __version__

    classes: Any = [component(package, name) for name in MODULES]
    name = f"cloudgpu-{package.rpartition('.')[2]}"
    component_provider_host(name=name, namespace="cloudgpu", version=__version__, components=classes)


def child_of(parent: pulumi.Resource, **more: Any) -> pulumi.ResourceOptions:  # ResourceOptions' own
    """Options of a component's own resource: its providers are the component's."""
    import pulumi

    return pulumi.ResourceOptions(parent=parent, **more)


def arguments_of_part(args: Mapping[str, Any], names: Iterable[str], **more: object) -> Any:  # a part's arguments
    """Return those of a component's arguments that are given, for a part that has the same, and `more` that are."""
    given = {name: args[name] for name in names if name in args}
    return {**given, **{name: value for name, value in more.items() if value is not None}}


def owner_of(args: Mapping[str, Any]) -> str:
    """`owner` of a component's arguments; omitted: made of the project's and the stack's names."""
    import pulumi

    return args.get("owner") or f"cloudgpu-{pulumi.get_project()}-{pulumi.get_stack()}"


def expiry_of(args: Mapping[str, Any]) -> pulumi.Input[str] | None:
    """`expires` of a component's arguments as a tag tells it: whole epoch seconds. None: never."""
    import pulumi

    expires = args.get("expires")
    if expires is None or isinstance(expires, (int, float)):
        return None if expires is None else str(int(expires))
    return pulumi.Output.from_input(expires).apply(lambda at: str(int(at)))
