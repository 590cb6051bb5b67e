"""Errors that end a node before its program has run."""

from __future__ import annotations


class NodeError(Exception):
    """cloudgpu cannot run the node, and no later attempt could; the message is the reason."""


class SecretsTimeoutError(Exception):
    """The job's secrets did not come in time, but may for a later attempt; the message is the reason."""
