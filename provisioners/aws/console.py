"""What an instance wrote on its console. Source: EC2's API reference, GetConsoleOutput."""

from __future__ import annotations

from ..shared.consoles import end_of
from .clients import Clients
from .errors import translate_errors


def console(clients: Clients, region: str, instance: str) -> str:
    """The last lines, as of now (`Latest`: instances on Nitro, as all that are launched); "": EC2 has none. One call.
    Raises ProvisionError."""
    with translate_errors(f"read the console of {instance}", clients.clock):
        return end_of(clients.ec2(region).get_console_output(InstanceId=instance, Latest=True).get("Output", ""))
