"""Pulumi plugin (PulumiPlugin.yaml) that serves the components to programs in TypeScript, Go, C#, Java and YAML.

Pulumi runs this folder as a program; `python -m cloudgpu.infra.aws ADDRESS` does the same.
See docs/reference/pulumi.md.
"""

import runpy
import sys

if __name__ == "__main__":
    if __package__:
        from ..components import serve

        serve("cloudgpu.infra.aws")
    else:  # run as a folder, outside the package: without this, its modules would be imported as top-level ones
        sys.path.pop(0)
        runpy.run_module("cloudgpu.infra.aws", run_name="__main__", alter_sys=False)
