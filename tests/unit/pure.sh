#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# pure.sh ARCHIVE CC: the core calls nothing but what is listed here, and keeps nothing that can be
# written. Time, random bytes and memory reach it as arguments alone. What a listed symbol stands
# for is read from the objects with nm, so no macro or inline function can hide a call. The
# check is tried on offenders first: one that finds nothing proves nothing.
set -u

archive=$1
cc=$2
dir=$(mktemp -d /tmp/hapax-pure.XXXXXX) || exit 1
trap 'rm -rf "$dir"' EXIT
failed=0
count=0

# Bytes and texts; the compiler's guards; asserts; the one exception, libcrypto's hashes; and from
# base what only computes.
allowed='
memchr memcmp memcpy memmove memset
strchr strcmp strcspn strlen strncmp strnlen strspn
snprintf vsnprintf
__memcpy_chk __memmove_chk __memset_chk __snprintf_chk __vsnprintf_chk
__stack_chk_fail __assert_fail _GLOBAL_OFFSET_TABLE_
CRYPTO_memcmp OPENSSL_cleanse SHA256 SHA256_Init SHA256_Update SHA256_Final
hapax__utf8_read
'

report() { # ok? name
    count=$((count + 1))
    if [ "$1" = 0 ]; then
        echo "ok $count - $2"
    else
        echo "not ok $count - $2"
        failed=1
    fi
}

# Undefined symbols that are neither defined in the same objects nor listed.
calls_of() {
    nm -u "$1" | awk 'NF == 2 {print $2}' | sort -u >"$dir/undefined"
    nm --defined-only "$1" | awk 'NF == 3 {print $3}' | sort -u >"$dir/defined"
    echo "$allowed" | tr ' ' '\n' | sort -u >"$dir/allowed"
    comm -23 "$dir/undefined" "$dir/defined" | comm -23 - "$dir/allowed"
}

# Sections that hold data which can be written: all but what is constant after relocation.
globals_of() {
    objdump -h "$1" | awk '
        $2 ~ /^\.(data|bss|tdata|tbss)/ && $2 !~ /^\.data\.rel\.ro/ && $3 !~ /^0+$/ {print $2}'
    nm "$1" | awk '$2 == "C" {print $3}'
}

offends() { # what, source
    echo "$2" >"$dir/offender.c"
    "$cc" -std=c11 -O1 -fPIC -D_GNU_SOURCE -c -o "$dir/offender.o" "$dir/offender.c" || exit 1
    [ -n "$(calls_of "$dir/offender.o")$(globals_of "$dir/offender.o")" ]
    report $? "an object that $1 is found"
}

innocent() { # what, source
    echo "$2" >"$dir/innocent.c"
    "$cc" -std=c11 -O1 -fPIC -D_GNU_SOURCE -c -o "$dir/innocent.o" "$dir/innocent.c" || exit 1
    [ -z "$(calls_of "$dir/innocent.o")$(globals_of "$dir/innocent.o")" ]
    report $? "an object that $1 is left alone"
}

offends 'allocates' '#include <stdlib.h>
void *f(size_t n) { return malloc(n); }'
offends 'frees' '#include <stdlib.h>
void f(void *p) { free(p); }'
offends 'reads the clock' '#include <time.h>
long f(void) { struct timespec t; clock_gettime(CLOCK_REALTIME, &t); return t.tv_sec; }'
offends 'asks for random bytes' '#include <sys/random.h>
long f(void *p) { return getrandom(p, 8, 0); }'
offends 'reads a file' '#include <unistd.h>
long f(void *p) { return read(0, p, 8); }'
offends 'takes a lock' '#include <pthread.h>
int f(pthread_mutex_t *m) { return pthread_mutex_lock(m); }'
offends 'counts in a global' 'int f(void) { static int n; return ++n; }'
offends 'keeps a global with a value' 'int n = 7; int f(void) { return n++; }'
offends 'keeps a value per thread' 'static _Thread_local int n; int *f(void) { return &n; }'
innocent 'has a constant table of pointers' 'static const char *const t[] = {"a", "b"};
const char *f(int i) { return t[i & 1]; }'
innocent 'compares bytes' '#include <string.h>
int f(const void *a, const void *b, size_t n) { return memcmp(a, b, n); }'

objects=$(nm --defined-only "$archive" | grep -c '^[a-z_]*\..*\.o:\|^.*\.o:$')
[ "$objects" -ge 2 ]
report $? "the archive has objects to look at ($objects)"
calls=$(calls_of "$archive")
[ -z "$calls" ]
report $? 'the core calls nothing that is not listed'
[ -z "$calls" ] || echo "$calls" | sed 's/^/# calls /'
globals=$(globals_of "$archive")
[ -z "$globals" ]
report $? 'the core keeps nothing that can be written'
[ -z "$globals" ] || echo "$globals" | sed 's/^/# keeps /'
echo "1..$count"
exit $failed
