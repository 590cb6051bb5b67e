"""Convert the program of the replicas (a Python package or a container) to code, setup, run and args of a job file.

User input never becomes shell text: packages are arguments of constant scripts, which install them.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..diagnostics import Loc, quote
from .conversion import Conversion

NO_PROGRAM = "no-program"
"""Code of the problem that is reported if a document names no program."""
_INSTALL_CODE = "if [ -f setup.py ] || [ -f pyproject.toml ]; then python -m pip install .; fi"
"""Script that installs the code folder, in which it runs, as a package, as the services did."""
_INSTALL_PACKAGES = """\
set -e
mkdir -p .packages
for package in "$@"; do
  case "$package" in
    gs://*) gcloud storage cp "$package" .packages/; package=".packages/${package##*/}" ;;
  esac
  python -m pip install "$package"
done"""


@dataclass(frozen=True, slots=True)
class Program:
    """Program of a job. As in the services, `module` overrides `command`, which overrides the image's entrypoint."""

    module: str | None = None
    module_loc: Loc = ()
    packages: tuple[str, ...] = ()
    packages_loc: Loc = ()
    package_path: str | None = None
    """Local folder of the Python package, e.g. `trainer/`; its parent folder is shipped."""
    package_path_loc: Loc = ()
    image: str | None = None
    command: tuple[str, ...] = ()
    command_loc: Loc = ()
    args: tuple[str, ...] = ()
    args_loc: Loc = ()
    env: tuple[tuple[str, str], ...] = ()
    env_loc: Loc = ()
    hint: str = field(default="say what to run")
    """Hint on how to name a program if there is none."""


def put_program(conversion: Conversion, program: Program, whole: Loc) -> None:
    """Set code, setup, run, args and env; report an error if there is neither a program nor an image.

    whole  place of the whole program in the document, for this error
    """
    if program.module is not None:
        conversion.put(("run",), ["python", "-m", program.module], program.module_loc)
        _put_packages(conversion, program)
    elif program.image is not None:
        if program.command:  # overrides the image's entrypoint, as `run` does
            conversion.put(("run",), list(program.command), program.command_loc)
        conversion.put(("code",), None, ())
    else:
        message = "this does not say what to run"
        if program.command:
            message = "this command has no image to run in"
        conversion.error(whole, NO_PROGRAM, message, program.hint)
        leave_program_open(conversion, whole)
    if program.args:
        conversion.put(("args",), list(program.args), program.args_loc)
    for name, value in program.env:
        conversion.put(("env", name), value, program.env_loc)


def leave_program_open(conversion: Conversion, whole: Loc) -> None:
    """Set a placeholder for `run`, so that the missing key is not reported.

    The missing program was reported already, or other mistakes make it unknown.
    """
    conversion.put(("run",), "false", whole)


def _put_packages(conversion: Conversion, program: Program) -> None:
    """Set code and setup for a Python package.

    The package's parent folder is shipped. Further packages are installed from that folder, or from their bucket.
    """
    local = [package for package in program.packages if not package.startswith("gs://")]
    code = "." if program.package_path is None else _parent(program.package_path)
    conversion.files += [(posixpath.normpath(posixpath.join(code, package)), program.packages_loc) for package in local]
    for package in local:
        if posixpath.normpath(package).startswith(("/", "../")):
            message = f"{quote(package)} is not in the folder that is shipped, {quote(code)}"
            conversion.error(program.packages_loc, "package-outside", message, "move it there")
    if program.package_path is not None:
        conversion.files.append((program.package_path, program.package_path_loc))
        conversion.put(("code",), code, program.package_path_loc)
    elif local:
        conversion.put(("code",), ".", program.packages_loc)
    elif program.packages:
        conversion.put(("code",), None, program.packages_loc)
    if len(local) < len(program.packages):
        conversion.note(
            "the gs:// packages are fetched on the machine by `gcloud storage cp`; "
            "to ship the source itself, set code: to its folder and drop setup:"
        )
    if program.packages:
        setup = ["sh", "-c", _INSTALL_PACKAGES, "setup", *program.packages]
        conversion.put(("setup",), setup, program.packages_loc)
    elif program.package_path is not None:
        conversion.put(("setup",), _INSTALL_CODE, program.package_path_loc)
    if not program.packages and program.package_path is None:
        conversion.note("no package is named: the folder of the file is shipped as code")


def _parent(package_path: str) -> str:
    return posixpath.dirname(posixpath.normpath(package_path)) or "."


def same_for_all(conversion: Conversion, programs: Sequence[Program], loc: Loc) -> None:
    """Report groups of replicas whose programs differ; a job runs one program.

    A group without a program runs the program of the first group, but a group with an image runs the image's
    entrypoint.
    """
    first = programs[0]
    for what, read in _PARTS.items():
        with_program = [other for other in programs[1:] if other.image is not None or read(other) not in ((), None)]
        if any(read(other) != read(first) for other in with_program):
            conversion.error(
                loc,
                "different-programs",
                f"the {what} of the groups differ; a job runs one program on all machines",
                "give all groups the same, and let the program look at CLOUDGPU_ROLE",
            )


_PARTS: dict[str, Callable[[Program], object]] = {
    "commands": lambda program: program.command,
    "modules": lambda program: program.module,
    "packages": lambda program: program.packages,
    "args": lambda program: program.args,
    "env": lambda program: program.env,
}
