"""How a cloud's machine begins: it is told how to fetch the agent file from the job dir and run it, on every boot.

user_data.py for EC2, startup_script.py for Compute Engine, container.py for Vertex AI: three ways of sending the same
bootstrap.
"""

from .container import container_command
from .fleet import fleet_boot
from .record import BootRecord
from .startup_script import startup_script
from .user_data import user_data

__all__ = ["BootRecord", "container_command", "fleet_boot", "startup_script", "user_data"]
