"""boto3 sessions that share what all need and takes tenths of a second to read: botocore's models of services."""

from __future__ import annotations

import boto3
import botocore.session
from botocore.loaders import create_loader

LOADER = create_loader()


def session() -> boto3.session.Session:
    """With the credentials and the region of the environment."""
    made = botocore.session.get_session()
    made.register_component("data_loader", LOADER)
    return boto3.session.Session(botocore_session=made)
