#!/bin/sh
# SPDX-License-Identifier: MIT
# Fails when a tracked C file is not as clang-format would have it.
cd "$(dirname "$0")/../.." || exit 2
command -v clang-format >/dev/null || { echo "clang-format is not installed" >&2; exit 77; }
git ls-files -z -- '*.c' '*.h' ':!tests/data' | xargs -0 -r ls -d 2>/dev/null |
    xargs -r clang-format --dry-run -Werror
