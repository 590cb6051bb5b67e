"""Console output of machines from Azure's boot diagnostics: it shows why a machine's system did not start."""

from __future__ import annotations

import logging

from ..base import ProvisionError
from ..shared.consoles import last_lines
from .clients import Clients, answer_of

log = logging.getLogger("cloudgpu.provisioners.azure")

_SAYS_NOTHING_ELSE = frozenset(
    {"OSProvisioningTimedOut", "OSProvisioningClientError", "OSProvisioningInternalError", "VMStartTimedOut"}
)
"""Azure's error codes for a running machine whose system did not report. Source: Azure's documentation, "Troubleshoot
deploying Linux virtual machine issues"."""
_RETRY_TIMEOUT_S = 20.0
_TIMEOUT_S = 20.0
_MOST = 16 * 1024 * 1024


def with_console(clients: Clients, group: str, name: str, error: ProvisionError) -> ProvisionError:
    """Return the error, with the end of the machine's console output appended if the error's code gives no reason."""
    if error.code not in _SAYS_NOTHING_ELSE:
        return error
    try:
        text = console(clients, group, name)
    except ProvisionError as refused:
        log.info("%s", refused)
        return error
    if not text:
        return error
    message = f"{error}\nits console ends with:\n{text}"
    return ProvisionError(error.error_class, message, scope=error.scope, code=error.code)


def console(clients: Clients, group: str, name: str) -> str:
    """Return the last lines of the console; "": none available. Raises ProvisionError."""
    machines = clients.compute.virtual_machines
    doing = f"read the console of {name}"
    found = clients.ask(
        doing, lambda: machines.retrieve_boot_diagnostics_data(group, name, cls=answer_of), _RETRY_TIMEOUT_S
    )
    url = str(dict(found).get("serialConsoleLogBlobUri") or "")
    return last_lines(clients.ask(doing, lambda: _read(url, doing), _RETRY_TIMEOUT_S)) if url else ""


def _read(url: str, doing: str) -> str:
    """Download the console output from a signed URL, without a token.

    Raises ProvisionError, whose message omits the URL: it is a secret, and the library's own errors contain it."""
    import requests

    data = b""
    try:
        with requests.get(url, timeout=_TIMEOUT_S, stream=True) as answer:
            answer.raise_for_status()
            for piece in answer.iter_content(65_536):
                data = (data + piece)[-_MOST:]
    except requests.RequestException as error:
        status = "" if error.response is None else f" (HTTP status {error.response.status_code})"
        code = type(error).__name__
        raise ProvisionError("transient", f"{doing}: {code}{status}", scope="region", code=code) from None
    return data.decode(errors="replace")
