#!/bin/sh
# SPDX-License-Identifier: MIT
# Fails when a public header does not compile alone, as C11 and as C++17, by gcc and by clang.
# $1: the folder of an installation, or nothing for the source tree.
cd "${1:-$(dirname "$0")/../..}" || exit 2
if [ $# -gt 0 ]; then
    headers=$(find . -name '*.h' | sort)
else
    headers="client/zeroclient.h client/zerocheckpoint.h proto/status.h proto/model.h"
fi
[ -n "$headers" ] || { echo "no public header in $PWD" >&2; exit 1; }
bad=0
for header in $headers; do
    for compiler in 'gcc -x c -std=c11' 'clang -x c -std=c11' 'g++ -x c++ -std=c++17' \
        'clang++ -x c++ -std=c++17'; do
        command -v "${compiler%% *}" >/dev/null || { echo "${compiler%% *} is not installed" >&2; exit 77; }
        # shellcheck disable=SC2086 # words
        printf '#include "%s"\n' "$header" |
            $compiler -Wall -Wextra -Wpedantic -Werror -fsyntax-only -I. - || {
            echo "$header does not compile alone: $compiler" >&2
            bad=1
        }
    done
done
exit $bad
