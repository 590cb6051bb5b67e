"""Definition of the target `azure`; provisioners/target.py describes the fields."""

from __future__ import annotations

from ..target import Boot, EnvironmentVariables, SelfDelete, Target

MAX_BYTES = 65_535
"""Maximum size of user data in bytes, before base64: osProfile.customData."""
_END = """\
header=Metadata:true
base=${CLOUDGPU_AZURE_METADATA:-http://169.254.169.254}/metadata
end() {
    id=$(get 'instance/compute/resourceId?api-version=2021-02-01&format=text')
    who="api-version=2018-02-01&resource=https://management.azure.com/&client_id=$2"
    ask "identity/oauth2/token?$who" POST "$1$id/deallocate?api-version=2024-07-01"
}
"""

TARGET = Target(
    provisioner=".provisioner:shared",
    set_up=".account:is_set_up",
    setup_hint="azure is not set up here: it needs Azure's SDK (pip install 'cloudgpu[azure]'), a subscription and "
    "credentials (`az login`, or AZURE_SUBSCRIPTION_ID with AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET), "
    "see docs/guides/azure.md",
    check=".check:steps",
    architecture=".catalog.sizes:architecture_of",
    collector=".lifecycle.gc",
    tables=".catalog.refresh",
    fleets=".fleets",
    boot=Boot(
        bucket="bucket_az",
        host="host_azure",
        group="group_azure",
        sent_as="user data",
        max_bytes=MAX_BYTES,
        needs_identity=True,
        stop=SelfDelete("https://management.azure.com", _END),
    ),
    settings=EnvironmentVariables(
        names=("AZURE_SUBSCRIPTION_ID", "AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CONFIG_DIR"),
        prefixes=("CLOUDGPU_AZURE_",),
    ),
    credentials=EnvironmentVariables(
        names=("AZURE_CLIENT_SECRET", "AZURE_CLIENT_CERTIFICATE_PATH", "AZURE_FEDERATED_TOKEN_FILE"),
        prefixes=("AZURE_STORAGE_",),
    ),
)
