"""Cloud Storage on the loopback: one store behind two APIs, XML as obstore speaks it and JSON as Google's own client.

`store.py` is what is kept and under which conditions it changes; `xml_api.py` and `json_api.py` are two services of
tests/standins/gcp (one process, one port); `control.py` is a test's hold on it.
"""

from .control import GcsControl

__all__ = ["GcsControl"]
