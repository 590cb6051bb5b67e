"""The components, served to programs in TypeScript, Go, C#, Java and YAML: a Pulumi plugin (PulumiPlugin.yaml).

Pulumi runs this folder as a program; `python -m cloudgpu.infra.gcp ADDRESS` does the same.
See docs/reference/pulumi.md.
"""

import runpy
import sys

if __name__ == "__main__":
    if __package__:
        from ..components import serve

        serve("cloudgpu.infra.gcp")
    else:  # as a folder: it is no part of the package then, and its modules would be top-level ones
        sys.path.pop(0)
        runpy.run_module("cloudgpu.infra.gcp", run_name="__main__", alter_sys=False)
