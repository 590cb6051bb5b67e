"""Choose the variables of the submitter's shell that a job on this machine gets,
by the list in docs/guides/local.md."""

from __future__ import annotations

import re
from collections.abc import Mapping

NAMES = frozenset(
    """
    HOME USER LOGNAME SHELL TZ TMPDIR LANG LANGUAGE
    XDG_CACHE_HOME XDG_CONFIG_HOME XDG_DATA_HOME XDG_RUNTIME_DIR
    VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV PYTHONPATH PYTHONHASHSEED
    LD_LIBRARY_PATH LIBRARY_PATH CPATH CC CXX
    HF_HOME HF_HUB_CACHE HF_HUB_OFFLINE HF_DATASETS_CACHE TORCH_HOME TRITON_CACHE_DIR
    PIP_CACHE_DIR PIP_CERT PIP_CONFIG_FILE PIP_CONSTRAINT PIP_EXTRA_INDEX_URL PIP_FIND_LINKS PIP_INDEX_URL PIP_NO_INDEX
    UV_CACHE_DIR UV_DEFAULT_INDEX UV_INDEX UV_INDEX_URL UV_EXTRA_INDEX_URL
    SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE
    HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY http_proxy https_proxy all_proxy no_proxy
    """.split()  # noqa: SIM905 - a table
)
"""Names of variables that are passed on, besides PATH, which is always kept with the job (JobRecord.search_path)."""
PREFIXES = ("LC_", "CUDA_", "CUDNN_", "NCCL_", "NVIDIA_", "OMP_", "MKL_", "OPENBLAS_", "PYTORCH_", "XLA_", "TF_")
SET_BY_THE_MACHINE = frozenset({"CUDA_VISIBLE_DEVICES", "TF_CONFIG"})
_CREDENTIALS = re.compile("://[^/@]*@")
_SECRET_NAME = re.compile("TOKEN|SECRET|PASSWORD|_KEY")


def choose(environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the variables that a job gets, and the names of those left out because they seem to hold a secret.

    Variables are stored with the job as plain text. URLs with a user or a password, e.g. of a proxy, are left out too.
    """
    allowed = {name: value for name, value in environ.items() if _is_allowed(name) and value.isprintable()}
    secret = [name for name, value in allowed.items() if _SECRET_NAME.search(name) or _CREDENTIALS.search(value)]
    return {name: value for name, value in sorted(allowed.items()) if name not in secret}, sorted(secret)


def _is_allowed(name: str) -> bool:
    return (name in NAMES or name.startswith(PREFIXES)) and name not in SET_BY_THE_MACHINE
