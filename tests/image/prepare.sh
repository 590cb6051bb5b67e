#!/usr/bin/env bash
# A base for `make image-test`, made of Debian's own packages: no registry of images is needed.
#   tests/image/prepare.sh FOLDER      leaves FOLDER/base.tar; fails if no container can be run on it
set -euo pipefail
folder=$1
missing=()
for program in podman mmdebstrap runc; do command -v "$program" >/dev/null || missing+=("$program"); done
if ((${#missing[@]})); then
    if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
        echo "image-test needs ${missing[*]}: apt-get install ${missing[*]}" >&2
        exit 1
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
mkdir -p "$folder"
if [[ ! -f $folder/base.tar ]]; then
    release=$(. /etc/os-release && echo "${VERSION_CODENAME:-bookworm}")
    packages=python3,python3-venv,tini,ca-certificates
    mmdebstrap --quiet --variant=minbase --include="$packages" "$release" "$folder/base.part.tar"
    mv "$folder/base.part.tar" "$folder/base.tar"
fi
export CONTAINERS_CONF=${0%/*}/containers.conf
name=localhost/cloudgpu-image-test-trial
podman import --quiet "$folder/base.tar" "$name" >/dev/null
podman run --rm --network=none "$name" true
podman rmi --force "$name" >/dev/null
