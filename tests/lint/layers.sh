#!/bin/sh
# Fails when a source file includes a folder that layers.txt does not allow it.
cd "$(dirname "$0")/../.." || exit 2
grep -rnE '^[[:space:]]*#[[:space:]]*include[[:space:]]+"' \
    --include='*.[ch]' --include='*.cu' --include='*.cuh' proto kernels client daemon deploy |
awk -F: '
function folder(path) { sub("/[^/]*$", "", path); return path }
FILENAME != "-" {
    sub(/#.*/, ""); n = split($0, word, /[[:space:]]+/)
    if (word[1] == "") next
    for (i = 2; i <= n; i++) if (word[i] != "") {
        if (!(word[i] in known)) { print "layers.txt: " word[1] " names " word[i] " before its line"; bad = 1 }
        allowed[word[1], word[i]] = 1
    }
    known[word[1]] = 1; allowed[word[1], word[1]] = 1; next
}
{
    line = $0; sub(/^[^"]*"/, "", line); sub(/".*/, "", line)
    from = folder($1); to = folder(line)
    if (!(from in known))             { print $1 ":" $2 ": folder " from " is not in layers.txt"; bad = 1 }
    else if (!((from, to) in allowed)) { print $1 ":" $2 ": " from " may not include " to; bad = 1 }
}
END { exit bad }' tests/lint/layers.txt -
