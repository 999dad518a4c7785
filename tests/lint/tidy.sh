#!/bin/bash
# SPDX-License-Identifier: MIT
# Fails when clang-tidy objects to a source file. $1: a build folder made by gcc or clang.
# One process a file (several at once give false reports); a file that passed is not looked at again
# until what the compiler sees of it changes.
set -uo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd) || exit 2
for tool in clang-tidy jq; do
    command -v $tool >/dev/null || { echo "$tool is not installed" >&2; exit 77; }
done
export source build=$1 seen=$1/tidy
mkdir -p "$seen"

# $1: file, $2: the command that compiles it
look() {
    local sum headers="^$source/(proto|kernels|client|daemon|deploy|tests)/.*\\.h\$"
    sum=$( (cat "$source/.clang-tidy" "$1" && cd "$build" && eval "$2 -E -CC -o -") 2>/dev/null |
        sha256sum) || sum=
    sum=${sum%% *}
    [ -z "$sum" ] || [ ! -e "$seen/$sum" ] || return 0
    nice clang-tidy --quiet -p "$build" --header-filter="$headers" "$1" \
        --extra-arg=-Wno-unknown-warning-option 2>&1 |
        grep -v -E '^[0-9]+ warnings?( and [0-9]+ errors?)? generated|^Suppressed|^Use -header-filter'
    [ "${PIPESTATUS[0]}" = 0 ] || return 1
    : >"$seen/$sum"
}
export -f look

jq -r --arg source "$source/" --arg build "$build/" \
    '.[] | select((.file | startswith($source)) and (.file | startswith($build) | not))
         | .file, .command' "$build/compile_commands.json" |
    tr '\n' '\0' | xargs -0 -n 2 -P "${JOBS:-$(nproc)}" bash -c 'look "$@"' look
