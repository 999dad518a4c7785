#!/bin/sh
# SPDX-License-Identifier: MIT
# Fails when shellcheck objects to a tracked shell script.
cd "$(dirname "$0")/../.." || exit 2
command -v shellcheck >/dev/null || { echo "shellcheck is not installed" >&2; exit 77; }
git ls-files | while read -r file; do
    if [ -f "$file" ] && head -n 1 "$file" | grep -aqE '^#!.*[/ ](ba|da)?sh( |$)'; then
        echo "$file"
    fi
done | xargs -r shellcheck
