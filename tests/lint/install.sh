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

"$here/headers.sh" "$prefix/include/zerod"
cat >"$prefix/train.c" <<'EOT'
#include <zeroclient.h>
#include <stdio.h>

int main(void)
{
    struct zero_detail detail;
    zero_client *client = NULL;
    zero_status s = zero_attach(NULL, &client, &detail);

    if (s.code == ZERO_OK)
        printf("attached as rank %u of %u\n", zero_client_info(client)->rank,
               zero_client_info(client)->world);
    else
        printf("%s: %s\n", zero_code_name(s.code), detail.text);
    zero_detach(client);
    return s.code != ZERO_OK;
}
EOT

# As README.md says, and nothing that helps it: the prefix is no place where a linker looks.
cd "$prefix"
unset LD_LIBRARY_PATH LD_RUN_PATH
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name zeroclient.pc)")
export PKG_CONFIG_PATH PATH="$prefix/bin:$PATH"
read -ra flags < <(pkg-config --cflags --libs zeroclient)
gcc -std=c11 -Wall -Wextra -Wpedantic -Werror -o train train.c "${flags[@]}"
for program in train "$(find "$prefix" -path '*/examples/gpt')"; do
    library=$(ldd "$program" | sed -n 's/.*libzeroclient.so.0 => \([^ ]*\) .*/\1/p')
    if [ "$(realpath -m "$library")" != "$(realpath "$(find "$prefix" -name libzeroclient.so.0)")" ]; then
        echo "$program finds libzeroclient.so.0 as '$library', not below $prefix" >&2
        exit 1
    fi
done
if ZERO_SOCKET=$prefix ./train; then
    echo "a trainer without a daemon says that all is well" >&2
    exit 1
fi
zerorun -n 2 -- ./train >"$prefix/out"
[ "$(sort "$prefix/out")" = "[trainer 0] attached as rank 0 of 2
[trainer 1] attached as rank 1 of 2" ] || {
    cat "$prefix/out"
    echo "trainers of an installed zerod did not attach" >&2
    exit 1
}
