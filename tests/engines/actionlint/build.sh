#!/usr/bin/env bash
# Builds actionlint, which checks workflows of GitHub Actions, from its Go module: some 10 MB of downloads.
set -euo pipefail
programs=$1 caches=$2
cd "$(dirname "${BASH_SOURCE[0]}")"
readonly package=github.com/rhysd/actionlint/cmd/actionlint unavailable=69
export GOCACHE=$caches/build GOMODCACHE=$caches/modules GOFLAGS=-modcacherw

if ! command -v go >/dev/null; then
    echo "actionlint: there is no Go here, which builds it" >&2
    exit "$unavailable"
fi
go mod download || exit "$unavailable"
go build -trimpath -ldflags '-s -w' -o "$programs/actionlint" "$package"
