"""Imports of the stand-in, for the process from which stand-ins are forked (../program.py)."""

import os

os.environ.setdefault("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")  # as in moto_side.py

import moto.autoscaling.urls
import moto.ec2.urls
import moto.iam.urls
import moto.moto_server.werkzeug_app
import moto.s3.urls
import moto.ssm.urls
import moto.sts.urls  # noqa: F401

from . import account, app, bucket_policies, moto_side  # noqa: F401
