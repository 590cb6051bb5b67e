"""Import what the stand-in needs sooner or later: for a process that stand-ins are forked from (../program.py)."""

import google.cloud.aiplatform_v1.types
import google.protobuf.json_format  # noqa: F401

from ..vertex import grpc_front, service  # noqa: F401
from . import app, platform  # noqa: F401
