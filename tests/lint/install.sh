#!/bin/bash
# SPDX-License-Identifier: MIT
# Fails when what `cmake --install` puts down cannot be used: programs, headers, pkg-config, library.
# $1: the build folder.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT

cmake --install "$1" --prefix "$prefix" >"$prefix/log" || { cat "$prefix/log"; exit 1; }
for program in zerod zeroctl zerorun; do
    "$prefix/bin/$program" --version | grep -E "^$program [0-9]+\.[0-9]+\.[0-9]+" || {
        echo "$program --version does not say its version" >&2
        exit 1
    }
done

PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name zeroclient.pc)")
export PKG_CONFIG_PATH
read -ra flags < <(pkg-config --define-variable=prefix="$prefix" --cflags --libs zeroclient)
"$here/headers.sh" "$prefix/include/zerod"
cat >"$prefix/user.c" <<'EOF'
#include <zeroclient.h>
#include <stdio.h>

int main(void)
{
    struct zero_attach_options options = { .socket = "/nowhere/rank-0.sock", .deadline_ms = 1 };
    struct zero_detail detail;
    zero_client *client = NULL;
    zero_status s = zero_attach(&options, &client, &detail);

    printf("%s: %s\n", zero_code_name(s.code), detail.text);
    return s.code == ZERO_OK || client != NULL || detail.text[0] == '\0';
}
EOF
gcc -std=c11 -Wall -Wextra -Wpedantic -Werror "$prefix/user.c" -o "$prefix/user" "${flags[@]}"
LD_LIBRARY_PATH=$(dirname "$(find "$prefix" -name libzeroclient.so)") "$prefix/user"
