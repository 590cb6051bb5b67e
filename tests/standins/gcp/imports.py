"""Imports of the stand-in, for the process from which stand-ins are forked (../program.py)."""

import google.cloud.aiplatform_v1.types
import google.protobuf.json_format  # noqa: F401

from ..vertex import grpc_front, service  # noqa: F401
from . import app, platform  # noqa: F401
