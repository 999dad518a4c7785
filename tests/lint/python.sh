#!/bin/sh
# SPDX-License-Identifier: MIT
# Fails when pyflakes, pycodestyle or mypy objects to the Python package, its examples or its tests,
# or Python 3.9 could not read them. $1: a Python that has all of these; $2: a folder for its cache.
cd "$(dirname "$0")/../.." || exit 2
files=$(git ls-files --cached --others --exclude-standard 'client/*.py' 'tests/torch/*.py')
bad=0
# shellcheck disable=SC2086 # a list of names
{
    "$1" -m pyflakes $files || bad=1
    "$1" -m pycodestyle --max-line-length=100 \
        --ignore=E126,E127,E128,E129,E203,E402,W503,W504 $files || bad=1
    "$1" - $files <<'EOF' || bad=1
import ast
import sys

for path in sys.argv[1:]:
    with open(path) as file:
        ast.parse(file.read(), path, feature_version=(3, 9))
EOF
}
cd client/python || exit 2
"$1" -m mypy --cache-dir "$2" -p zeroclient || bad=1
exit $bad
