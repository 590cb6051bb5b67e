#!/usr/bin/env bash
# Builds Pulumi's command from its Go module, some 300 MB of downloads and ten minutes on two cores.
set -euo pipefail
programs=$1 caches=$2
cd "$(dirname "${BASH_SOURCE[0]}")"
readonly module=github.com/pulumi/pulumi unavailable=69
readonly package=$module/pkg/v3/cmd/pulumi tags=osusergo,grpcnotrace
export GOCACHE=$caches/build GOMODCACHE=$caches/modules GOFLAGS=-modcacherw

if ! command -v go >/dev/null; then
    echo "pulumi: there is no Go here, which builds it" >&2
    exit "$unavailable"
fi
echo "pulumi: downloading its modules"
packages=$(go list -tags "$tags" -deps "$package" | wc -l) || exit "$unavailable"
version=$(go list -m -f '{{.Version}}' "$module/pkg/v3")

# Linked in, for Pulumi's SDK refuses an engine that does not say its version.
linked="-s -w -X $module/sdk/v3/go/common/version.Version=$version"
echo "pulumi: compiling $version, $packages packages"
go build -v -trimpath -tags "$tags" -ldflags "$linked" -o "$programs/pulumi" "$package" 2>&1 |
    awk -v all="$packages" '/^[^ :#]+$/ { if (++n % 100 == 0) { print "pulumi: " n " of " all; fflush() } next } { print }'
