"""Import what the stand-in needs sooner or later: for a process that stand-ins are forked from (../program.py)."""

import azure.mgmt.authorization.models
import azure.mgmt.compute.models
import azure.mgmt.msi.models
import azure.mgmt.network.models
import azure.mgmt.resource.resources.models  # noqa: F401

from . import app, world  # noqa: F401
