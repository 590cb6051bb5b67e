"""Console output of instances, from their first serial port.

Source: Compute Engine's API reference, instances.getSerialPortOutput.
"""

from __future__ import annotations

from ..shared.consoles import last_lines
from .clients import READ_S, Clients


def console(clients: Clients, machine: str) -> str:
    """Return the last lines of a machine's console; "": none. One call. Raises ProvisionError.

    `machine`: `zone/name`, as in Allocation.machines."""
    zone, _, name = machine.partition("/")

    def ask() -> str:
        found = clients.instances.get_serial_port_output(
            project=clients.project, zone=zone, instance=name, retry=None, timeout=READ_S
        )
        return last_lines(found.contents)

    return clients.ask(f"read the console of {name} in {zone}", ask)
