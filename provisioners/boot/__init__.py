"""Boot data of cloud machines: a bootstrap that fetches the agent file from the job dir and runs it, on every boot.

There are three ways of sending the same bootstrap: user_data.py (EC2, Azure), startup_script.py (Compute Engine) and
container.py (Vertex AI).
"""

from .container import container_command
from .fleet import fleet_boot
from .record import BootRecord
from .startup_script import startup_script
from .user_data import user_data

__all__ = ["BootRecord", "container_command", "fleet_boot", "startup_script", "user_data"]
