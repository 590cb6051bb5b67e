"""boto3 sessions that share botocore's service models, which take tenths of a second to load."""

from __future__ import annotations

import boto3
import botocore.session
from botocore.loaders import create_loader

LOADER = create_loader()


def session() -> boto3.session.Session:
    """Return a session with the environment's credentials and region."""
    made = botocore.session.get_session()
    made.register_component("data_loader", LOADER)
    return boto3.session.Session(botocore_session=made)
