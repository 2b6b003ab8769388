#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# exports.sh INCLUDE-DIR LIBRARY…: each library exports what the public headers declare, and of
# our own names (hapax__) only those that another of the libraries uses.
set -u

include=$1
shift
dir=$(mktemp -d /tmp/hapax-exports.XXXXXX) || exit 1
trap 'rm -rf "$dir"' EXIT
failed=0
count=0

report() { # name, offending names
    count=$((count + 1))
    if [ -z "$2" ]; then
        echo "ok $count - $1"
    else
        echo "not ok $count - $1"
        echo "$2" | sed 's/^/# /'
        failed=1
    fi
}

cat "$include"/hapax/*.h | grep -oE '\bhapax_[a-z][a-z0-9_]*' | sort -u >"$dir/public"
for library; do
    nm -D -u "$library" | awk '{print $NF}' | sed 's/@.*//'
done | sort -u >"$dir/used"
for library; do
    name=$(basename "$library")
    nm -D --defined-only "$library" | awk '{print $NF}' | sed 's/@.*//' | sort -u >"$dir/exported"
    cat "$dir/exported" >>"$dir/all"
    report "$name exports what is public or shared" \
        "$(grep -v '^hapax__' "$dir/exported" | comm -23 - "$dir/public")"
    report "$name shares what a library uses" \
        "$(grep '^hapax__' "$dir/exported" | comm -23 - "$dir/used")"
done

# The other way round. A check that finds no function proves nothing.
sed -n 's/^HAPAX_API .*\b\(hapax_[a-z0-9_]*\)(.*/\1/p' "$include"/hapax/*.h |
    sort -u >"$dir/declared"
report 'the headers mark their functions' \
    "$([ "$(wc -l <"$dir/declared")" -ge 30 ] || echo 'fewer than 30 are marked')"
report 'each public function is exported' "$(sort -u "$dir/all" | comm -23 "$dir/declared" -)"
echo "1..$count"
exit $failed
