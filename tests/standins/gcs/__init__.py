"""Cloud Storage on loopback: one store behind two APIs, XML as obstore uses it and JSON as Google's client does.

`store.py` holds the objects and their preconditions; `xml_api.py` and `json_api.py` are two services of
tests/standins/gcp (one process, one port); `control.py` is the test's client.
"""

from .control import GcsControl

__all__ = ["GcsControl"]
