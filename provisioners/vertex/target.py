"""What the target `vertex` needs code for: provisioners/target.py says what each field is."""

from __future__ import annotations

from ..gcp.target import CREDENTIALS, NEEDS, SETTINGS
from ..target import Boot, Target, Variables

TARGET = Target(
    provisioner=".provisioner:shared",
    set_up="..gcp.clients:could_be_used",
    setup_hint=f"vertex is not set up here: {NEEDS}, see docs/vertex.md",
    architecture="..gcp.machines:architecture_of",
    collector=".collect",
    boot=Boot(modules={"bucket.py": "bucket_gs.py", "host.py": "host_container.py"}, sent_as="container"),
    settings=Variables(names=SETTINGS, beginnings=("CLOUDGPU_GCP_", "CLOUDGPU_VERTEX_")),
    credentials=CREDENTIALS,
)
