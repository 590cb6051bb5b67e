"""The long mode of the tests: all of a sweep, and on every cloud what the ordinary run tries on one."""

from __future__ import annotations

import os

import pytest

LONG = os.environ.get("CLOUDGPU_LONG", "") not in ("", "0")
in_long_mode = pytest.mark.skipif(not LONG, reason="only with CLOUDGPU_LONG=1")
