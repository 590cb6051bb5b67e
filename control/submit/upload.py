"""Upload of the files that a job's machines need into the job dir: the code, and the agent for machines in clouds.

Both are named by their content. In an object store, each computer uploads the same content only once, to `shared/`
beside the jobs' folders; the store then copies it to the job's folder, because machines may read only that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...jobspecs.home import home
from ...protocol.jobdir import JobDir, agent_key, code_key
from ...provisioners import AgentFile, architecture_of
from ...runtime.archive import ArchiveError, pack
from ..errors import SubmitError
from ..paths import state_dir
from .upload_log import Uploads

if TYPE_CHECKING:
    from ...jobspecs.plan import Offer
    from ...provisioners.boot.agent_file import Built
    from ...storage.buckets import Bucket

ProgressCallback = Callable[[str, int, int], None]
"""(step, bytes done, bytes in all); step: "packing", "uploading" (the code, both), "preparing agent", "uploading
agent" or "submitting"."""

SHARED = "shared"
"""Name of the shared folder beside the jobs' folders; no job id equals it. It may be deleted at any time."""


class Uploader:
    """Uploads files into a job's folder. `url` is the folder's, `<job_dir>/<job id>`."""

    def __init__(
        self, url: str, on_progress: ProgressCallback, bucket: Bucket | None = None, *, make: bool = True
    ) -> None:
        """Open the job's folder. `bucket`: connection to reuse; None: open a new one. `make`: as for JobDir."""
        self._parent_url, _, self._job = url.rpartition("/")
        self._job_dir = JobDir(url, make=make, bucket=bucket)
        self._bucket = bucket
        self._on_progress = on_progress

    def code(self, folder: Path, without: Collection[Path] = ()) -> str:
        """Pack and upload a folder but the files `without`; return the archive's sha256. Raises SubmitError,
        JobDirError."""
        self._on_progress("packing", 0, 0)
        try:
            archive = pack(folder, lambda done, total: self._on_progress("packing", done, total), without)
        except ArchiveError as error:
            raise SubmitError(f"code: {error}") from error
        try:
            self._upload_once("uploading", code_key(archive.sha256), archive.path, archive.size)
        finally:
            archive.path.unlink(missing_ok=True)
        return archive.sha256

    def agents(self, offers: Sequence[Offer]) -> dict[str, str]:
        """Upload the agents for cloud machines; return architecture -> sha256. Raises SubmitError, JobDirError."""
        needed = sorted({architecture for offer in offers for architecture in architectures(offer)})
        if not needed:
            return {}
        from ...provisioners.boot.agent_file import PYTHONS_VARIABLE, AgentFileError

        self._on_progress("preparing agent", 0, 0)
        pythons = os.environ.get(PYTHONS_VARIABLE)
        try:
            built = [_built(architecture, home(), pythons) for architecture in needed]
        except AgentFileError as error:
            raise SubmitError(str(error)) from error
        for file in built:
            self._upload_once("uploading agent", agent_key(file.sha256), file.path, file.size)
        return {file.architecture: file.sha256 for file in built}

    def _upload_once(self, what: str, key: str, path: Path, size: int) -> None:
        """Upload a file under a key that names its content.

        Others, machines included, may write to the shared folder. An object there is reused only if this computer
        uploaded it and it has not been replaced.
        """
        if self._job_dir.folder is not None:
            self._upload(what, self._job_dir, key, path)
            return
        parent, shared = JobDir(self._parent_url, bucket=self._bucket), f"{SHARED}/{key}"
        uploads, url = Uploads(state_dir() / "uploads.json"), f"{self._parent_url}/{shared}"
        found = parent.entry(shared)
        if found is None or found.size != size or not uploads.has(url, found):
            self._upload(what, parent, shared, path)
            uploads.note(url, parent.entry(shared))
        parent.copy(f"{SHARED}/{key}", f"{self._job}/{key}")

    def _upload(self, what: str, store: JobDir, key: str, path: Path) -> None:
        try:
            store.upload_file(key, path, lambda done, total: self._on_progress(what, done, total))
        except OSError as error:
            raise SubmitError(f"{path} cannot be read: {error.strerror or error}") from error


_BUILT: dict[tuple[str, Path, str | None], Built] = {}
"""Cache of the agent files that this process has built, by _built()'s arguments: a build reads all wheels."""


def _built(architecture: str, folder: Path, pythons: str | None) -> Built:
    """Return an agent file; build it unless this process has done so before. Raises AgentFileError."""
    from ...provisioners.boot.agent_file import build_agent_file

    key = architecture, folder, pythons
    if key not in _BUILT or not _BUILT[key].path.is_file():
        _BUILT[key] = build_agent_file(architecture)
    return _BUILT[key]


def architectures(offer: Offer) -> Sequence[str]:
    """Return the architectures of an offer's machines; empty on this machine, which has an agent."""
    found = (architecture_of(offer.cloud, role.machine_type) for role in offer.roles)
    return tuple(dict.fromkeys(architecture for architecture in found if architecture is not None))


def agent_for(offer: Offer, shipped: dict[str, str]) -> AgentFile | None:
    """Return the agent file for the machines of an offer; None: the target has its own agent.

    An offer with machines of two architectures gets the first one's file, and the provisioner refuses it.
    """
    for architecture in architectures(offer):
        if architecture in shipped:
            return AgentFile(agent_key(shipped[architecture]), shipped[architecture], architecture)
    return None
