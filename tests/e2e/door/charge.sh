#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The example does what it says: usage: charge.sh PATH-OF-CHARGE
set -eu

charge=$1
dir=$(mktemp -d /tmp/hapax-charge-XXXXXX)
trap 'rm -rf "$dir"' EXIT
cd "$dir"

number=0
failed=0
claim() { # NAME COMMAND…
    name=$1
    shift
    number=$((number + 1))
    if "$@"; then
        echo "ok $number - $name"
    else
        echo "not ok $number - $name"
        failed=1
    fi
}

echo "1..6"
first=$("$charge" order-17 4200 || true)
again=$("$charge" order-17 4200 || true)
claim the_first_call_charges test "$first" = "fresh: charged 4200 by attempt 1"
claim a_repeat_has_the_same_receipt test "$again" = "replay: charged 4200 by attempt 1"
claim the_card_is_charged_once test "$(cat ledger.txt)" = 4200
other=$("$charge" order-17 9900 || true)
claim another_amount_under_the_key_is_refused test "$other" = "mismatch: "
"$charge" order-18 100 rocksdb:elsewhere >/dev/null || true
claim another_key_charges_again test "$(wc -l <ledger.txt)" -eq 2
code=0
"$charge" 2>/dev/null || code=$?
claim without_arguments_it_is_usage test "$code" -eq 2
exit $failed
