#!/usr/bin/env bash
# Builds the engines that are not in the cache yet; `make engines` calls it. Each folder here with a build.sh is one.
#
#     tests/engines/build.sh           # build what is missing
#     tests/engines/build.sh --path    # print the folders of those that are there, each followed by a colon, for PATH
#
# An engine's build.sh is called with two empty folders: the programs go into the first, caches and whatever else it
# needs into the second, which is removed. It ends with 69 where something that it needs, such as a compiler or the
# network, is not there: its tests are then skipped. The key in the cache is the hash of the engine's files.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/cloudgpu-engines
readonly unavailable=69

place_of() {
    echo "$cache/$1-$({ uname -sm && cd "$here/$1" && sha256sum -- *; } | sha256sum | cut -c 1-12)"
}

# In a subshell, whose end removes what it made, and without `set -e`, for its status is asked for. The rename is
# atomic: what is in the cache is whole.
build() (
    name=$1 place=$(place_of "$1")
    mkdir -p "$cache" && work=$(mktemp -d "$cache/.$name.XXXXXX") || exit
    find "$cache" -maxdepth 1 -name ".$name.*" -mmin +1440 -exec rm -rf {} + # of builds that were killed
    trap 'rm -rf "$work"' EXIT
    mkdir "$work/programs" "$work/caches" || exit
    "$here/$name/build.sh" "$work/programs" "$work/caches" || exit
    mv -T "$work/programs" "$place" 2>/dev/null || [[ -d $place ]] # another process was faster
)

for script in "$here"/*/build.sh; do
    name=$(basename "$(dirname "$script")")
    place=$(place_of "$name")
    if [[ ${1-} == --path ]]; then
        [[ ! -d $place ]] || printf '%s:' "$place"
    elif [[ -d $place ]]; then
        echo "$name: in the cache ($place)"
    else
        status=0
        build "$name" || status=$?
        if ((status == unavailable)); then
            printf '\n*** NOT BUILT: %s: the tests that need it are skipped ***\n\n' "$name" >&2
        elif ((status)); then
            exit "$status"
        else
            echo "$name: built ($place)"
        fi
    fi
done
