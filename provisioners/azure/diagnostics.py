"""What a machine wrote on its console, by Azure's boot diagnostics: why its system never reported."""

from __future__ import annotations

import logging

from ..base import ProvisionError
from .clients import Clients, answer_of

log = logging.getLogger("cloudgpu.provisioners.azure")

_SAYS_NOTHING_ELSE = frozenset(
    {"OSProvisioningTimedOut", "OSProvisioningClientError", "OSProvisioningInternalError", "VMStartTimedOut"}
)
"""Of Azure's codes: the machine runs, and its system did not report. Source: Azure's documentation, "Troubleshoot
deploying Linux virtual machine issues"."""
_PATIENCE_S = 20.0
_TIMEOUT_S = 20.0
_MOST = 16 * 1024 * 1024
_LINES, _CHARACTERS = 15, 1_500
"""Of the end of what it wrote."""


def with_console(clients: Clients, group: str, name: str, error: ProvisionError) -> ProvisionError:
    """The same error, with the end of the console if that is where the reason is."""
    if error.code not in _SAYS_NOTHING_ELSE:
        return error
    text = console(clients, group, name)
    if not text:
        return error
    message = f"{error}\nits console ends with:\n{text}"
    return ProvisionError(error.error_class, message, scope=error.scope, code=error.code)


def console(clients: Clients, group: str, name: str) -> str:
    """The last lines; "": Azure has none, or does not tell. Never raises ProvisionError."""
    machines = clients.compute.virtual_machines
    doing = f"read the console of {name}"
    try:
        found = clients.ask(
            doing, lambda: machines.retrieve_boot_diagnostics_data(group, name, cls=answer_of), _PATIENCE_S
        )
        url = str(dict(found).get("serialConsoleLogBlobUri") or "")
        return _end_of(clients.ask(doing, lambda: _read(url), _PATIENCE_S)) if url else ""
    except ProvisionError as refused:
        log.info("%s", refused)
        return ""


def _read(url: str) -> str:
    """By a signed URL: whoever has it may read, and a token of ours must not go there."""
    import requests

    with requests.get(url, timeout=_TIMEOUT_S, stream=True) as answer:
        answer.raise_for_status()
        data = b""
        for piece in answer.iter_content(65_536):
            data = (data + piece)[-_MOST:]
    return data.decode(errors="replace")


def _end_of(text: str) -> str:
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-_LINES:])[-_CHARACTERS:]
