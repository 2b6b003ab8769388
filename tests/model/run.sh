#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# run.sh SPIN CC good|short|bad: searches every interleaving of hapax.pml. The good and the short
# variants must be searched to the end without an error. In each bad variant an error must be
# found, and each state that is sought must be reached: a model that cannot fail, or never gets to a
# takeover, proves nothing.
set -u

spin=$1
cc=$2
kind=$3
model=$(cd "$(dirname "$0")" && pwd)/hapax.pml
dir=$(mktemp -d /tmp/hapax-model.XXXXXX) || exit 1
trap 'rm -rf "$dir"' EXIT
failed=0
count=0

# Says "errors states" of one variant; nothing where it could not be searched. The variant without
# defines is searched for seconds. The others take less time than the compiler would need to
# optimise them.
search() {
    cd "$dir" || return
    optimise=-O$((1 - ($# > 0)))
    rm -f pan*
    "$spin" -a "$@" "$model" >spin.log 2>&1 || { sed 's/^/# /' spin.log >&2; return; }
    "$cc" "$optimise" -w -DSAFETY -DCOLLAPSE -o pan pan.c 2>cc.log ||
        { sed 's/^/# /' cc.log >&2; return; }
    ./pan -m100000 -w24 >pan.log 2>&1
    if grep -q 'max search depth too small\|out of memory\|aborted' pan.log; then
        sed 's/^/# /' pan.log >&2
        return
    fi
    sed -n 's/.*errors: \([0-9]*\).*/\1/p' pan.log
    sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' pan.log
    grep '^pan:1:' pan.log
}

check() { # good|short|bad, name, defines…
    want=$1
    name=$2
    [ "$want" = "$kind" ] || return
    shift 2
    # shellcheck disable=SC2046
    result=$(search "$@")
    errors=$(echo "$result" | sed -n 1p)
    states=$(echo "$result" | sed -n 2p)
    why=$(echo "$result" | sed -n '3s/^pan:1: //p')
    count=$((count + 1))
    ok='not ok'
    if [ -n "$errors" ] && [ -n "$states" ]; then
        if [ "$want" != bad ] && [ "$errors" = 0 ]; then
            ok=ok
        elif [ "$want" = bad ] && [ "$errors" -gt 0 ]; then
            ok=ok
        fi
    fi
    [ "$ok" = ok ] || failed=1
    echo "$ok $count - $name (${states:-no} states, errors: ${errors:-?}${why:+, $why})"
}

command -v "$spin" >/dev/null || { echo "Bail out! spin is not installed"; exit 1; }

check good 'rerun keeps every promise'
check good 'hold keeps every promise' -DHOLD
check short 'without time or crashes nobody is stranded' -DNO_TIME
check short 'without time or crashes nobody is stranded under hold' -DNO_TIME -DHOLD
check bad 'found: no token is compared' -DNO_TOKEN
check bad 'found: no token is compared under hold' -DNO_TOKEN -DHOLD
check bad 'found: hold takes over and compares the token at completion only' -DHOLD -DTAKEOVER
check bad 'found: a lost reply is read as absent' -DLOST_IS_ABSENT
check bad 'found: a lost reply is read as absent under hold' -DLOST_IS_ABSENT -DHOLD
check bad 'found: a claim is repeated with another token' -DNEW_TOKEN -DNO_TIME
check bad 'found: the answer is given before it is stored' -DANSWER_FIRST
check bad 'found: what died under hold runs again' -DHOLD -DDEATH_RERUNS
check bad 'sought: a takeover' -DSEEK_TAKEOVER
check bad 'sought: an unknown result' -DSEEK_UNKNOWN -DHOLD
check bad 'sought: a death that another attempt follows' -DSEEK_DEATH
check bad 'sought: a replay' -DSEEK_REPLAY
check bad 'sought: a zombie that learns what stands' -DSEEK_LOST
echo "1..$count"
exit $failed
