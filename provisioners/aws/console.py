"""Console output of an instance. Source: EC2's API reference, GetConsoleOutput."""

from __future__ import annotations

from ..shared.consoles import last_lines
from .clients import Clients
from .errors import translate_errors


def console(clients: Clients, region: str, instance: str) -> str:
    """Return the last lines of an instance's console; "": there are none. One call. Raises ProvisionError.

    `Latest` works for Nitro instances only; cloudgpu launches no others."""
    with translate_errors(f"read the console of {instance}", clients.clock):
        return last_lines(clients.ec2(region).get_console_output(InstanceId=instance, Latest=True).get("Output", ""))
