#!/usr/bin/env bash
# What tests/packages/suites runs inside.
set -euo pipefail
export LC_ALL=C.UTF-8 PYTHONDONTWRITEBYTECODE=1
for name in gcc clang nginx redis-server valkey-server postgresql librocksdb-dev libpq-dev \
    libcurl4-openssl-dev libssl-dev librdkafka-dev librabbitmq-dev libmicrohttpd-dev; do
    dpkg-query -W -f '${Package} ${Version}\n' "$name" 2>/dev/null || true
done
tools/build build -Dwerror=true
# Without those that need DynamoDB's stand-ins, which no package has.
meson test -C build --list --suite unit --suite store | sed 's/.* \/ //' |
    grep -v '^store dyna' >../names
mapfile -t names <../names
meson test -C build --num-processes "$(nproc)" --timeout-multiplier 5 --print-errorlogs \
    "${names[@]}"
HAPAX_BUILD=$PWD/build python3 -m pytest -q -p no:cacheprovider -n 2 \
    tests/e2e/gate/test_gate.py tests/e2e/gate/test_serve.py
if command -v valkey-server >/dev/null; then
    valkey-server --port 7790 --save '' --appendonly yes --dir "$(mktemp -d)" --daemonize yes
    until valkey-cli -p 7790 ping >/dev/null 2>&1; do :; done
    build/tests/store/store_test --rounds 4 --seconds 1 redis://127.0.0.1:7790
    valkey-cli -p 7790 shutdown nosave
fi
CC=clang tools/build build-clang -Dwerror=true
echo "$1 holds"
