#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# headers.sh INCLUDE-DIR CC CXX: each public header stands alone. It compiles as the only include of
# a file, twice in one file, as C11 and as C++, without a warning; and a C++ program links against
# what it declares. The first of them is the manual, so it has to stay short. In C++ -Wshadow is
# left out: there a struct and a function of one name (hapax_id) count as shadowing.
set -u

include=$1
cc=$2
cxx=$3
warnings="-Wall -Wextra -Wpedantic -Wconversion -Werror"
warnings="$warnings $(pkg-config --cflags libpq | sed 's/-I/-isystem /g')"
dir=$(mktemp -d /tmp/hapax-headers.XXXXXX) || exit 1
trap 'rm -rf "$dir"' EXIT
failed=0
count=0

report() { # ok? name
    count=$((count + 1))
    if [ "$1" = 0 ]; then
        echo "ok $count - $2"
    else
        echo "not ok $count - $2"
        failed=1
    fi
}

for path in "$include"/hapax/*.h; do
    name=hapax/$(basename "$path")
    printf '#include <%s>\n#include <%s>\nint main(void) { return 0; }\n' "$name" "$name" \
        >"$dir/alone.c"
    cp "$dir/alone.c" "$dir/alone.cc"
    # shellcheck disable=SC2086
    "$cc" -std=c11 $warnings -Wshadow -Wstrict-prototypes -I "$include" -fsyntax-only "$dir/alone.c"
    report $? "$name compiles alone as C11"
    for std in c++11 c++17; do
        # shellcheck disable=SC2086
        "$cxx" -std=$std $warnings -I "$include" -fsyntax-only "$dir/alone.cc"
        report $? "$name compiles alone as $std"
    done
    printf '#include <%s>\nint f(void) { undeclared(); }\n' "$name" >"$dir/bad.c"
    # shellcheck disable=SC2086
    ! "$cc" -std=c11 $warnings -I "$include" -fsyntax-only "$dir/bad.c" 2>/dev/null
    report $? "a mistake beside $name is seen"
done

printf '#include <hapax/hapax.h>\nvoid *f() { return (void *)hapax_open; }\n' >"$dir/linkage.cc"
"$cxx" -std=c++11 -I "$include" -c -o "$dir/linkage.o" "$dir/linkage.cc" &&
    nm -u "$dir/linkage.o" | grep -q ' hapax_open$'
report $? 'C++ sees the C names'

lines=$(wc -l <"$include/hapax/hapax.h")
[ "$lines" -le 400 ]
report $? "hapax.h is short enough to be read ($lines lines of at most 400)"
echo "1..$count"
exit $failed
