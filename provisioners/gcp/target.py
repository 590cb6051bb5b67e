"""Definition of the target `gcp`; provisioners/target.py describes the fields."""

from __future__ import annotations

from ..target import Boot, EnvironmentVariables, SelfDelete, Target

SETTINGS = ("GOOGLE_CLOUD_PROJECT", "GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_CONFIG", "STORAGE_EMULATOR_HOST")
CREDENTIALS = EnvironmentVariables(
    names=("GOOGLE_BEARER_TOKEN", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY")
)
NEEDS = (
    "it needs Google's SDK (pip install 'cloudgpu[gcp]') and credentials "
    "(`gcloud auth application-default login`, or GOOGLE_APPLICATION_CREDENTIALS)"
)
_END = """\
header=Metadata-Flavor:Google
base=http://${GCE_METADATA_HOST:-169.254.169.254}/computeMetadata/v1
end() {
    zone=$(get instance/zone)
    path=projects/$(get project/project-id)/zones/${zone##*/}/instances/$(get instance/name)
    ask instance/service-accounts/default/token DELETE "$1/compute/v1/$path"
}
"""

TARGET = Target(
    provisioner=".provisioner:shared",
    set_up=".clients:is_set_up",
    setup_hint=f"gcp is not set up here: {NEEDS}, see docs/guides/gcp.md",
    check=".check:steps",
    architecture=".machine.machine_types:architecture_of",
    collector=".lifecycle.gc",
    tables=".catalog.refresh",
    fleets=".fleets",
    boot=Boot(
        bucket="bucket_gs",
        host="host_gce",
        group="group_gcp",
        sent_as="startup script",
        stop=SelfDelete("https://compute.googleapis.com", _END),
    ),
    settings=EnvironmentVariables(names=SETTINGS, prefixes=("CLOUDGPU_GCP_",)),
    credentials=CREDENTIALS,
)
