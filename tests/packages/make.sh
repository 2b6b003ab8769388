#!/usr/bin/env bash
# What tests/packages/make runs inside.
set -euo pipefail
export LC_ALL=C.UTF-8 PYTHONDONTWRITEBYTECODE=1
trap 'echo "FAILED: $BASH_COMMAND"; cat ../run.log ../answers 2>/dev/null' ERR
printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d # starts no service: there is no init
chmod 755 /usr/sbin/policy-rc.d

CFLAGS=-Werror make build
apt-get -qq -y install --no-install-recommends curl >/dev/null # the build must not lean on it

free='import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])'
port=$(/usr/bin/python3 -c "$free")
set -m # a group of its own, for Ctrl-C
make run PORT="$port" >../run.log 2>&1 &
run=$!
set +m
until grep -q 'Ctrl-C ends it' ../run.log; do
    kill -0 $run || { cat ../run.log && exit 1; }
    sleep 0.1
done
# The first two lines to try: a charge, and the same again.
grep -m 2 '^  curl -i' ../run.log >../lines
[ "$(uniq ../lines | wc -l)" = 1 ]
sh -e ../lines >../answers
[ "$(grep -c '^HTTP/1.1 201' ../answers)" = 2 ]
[ "$(grep -c '^Idempotency-Replayed: true' ../answers)" = 1 ]
[ "$(grep '^{' ../answers | uniq -c | wc -l)" = 1 ]
[ "$(curl -s "localhost:$port/payments" | grep -c '"charges": 1,')" = 1 ]
kill -INT -- -$run
wait $run || true
if grep -sx 'hapax\|nginx' /proc/[0-9]*/comm; then exit 1; fi
echo '== make run: one charge, one replay, and nothing is left'

meson test -C build --num-processes $((2 * $(nproc))) --timeout-multiplier 5 --print-errorlogs \
    --suite unit
echo "$1: make holds"
