"""Imports of the stand-in, for the process from which stand-ins are forked (../program.py)."""

import azure.mgmt.authorization.models
import azure.mgmt.compute.models
import azure.mgmt.msi.models
import azure.mgmt.network.models
import azure.mgmt.resource.resources.models  # noqa: F401

from . import app, world  # noqa: F401
