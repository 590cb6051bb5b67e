"""What holds for all tests."""

from __future__ import annotations

import os

# Users do not have it set, and it hides what is never flushed.
os.environ.pop("PYTHONUNBUFFERED", None)
