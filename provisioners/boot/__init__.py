"""How a cloud machine begins: user data that fetches the agent file from the job dir and runs it, on every boot."""

from .record import BootRecord
from .user_data import MAX_BYTES, user_data

__all__ = ["MAX_BYTES", "BootRecord", "user_data"]
