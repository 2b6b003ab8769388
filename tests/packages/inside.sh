#!/bin/sh
# What a stranger does on a machine that has nothing but Debian: installs the packages that lie in /debs, gets a first
# answer and its replay, and removes them. Runs in a root of its own (tests/packages/try); ends with "packages hold".
set -eu
export DEBIAN_FRONTEND=noninteractive

say() { echo "== $*"; }
fail() {
    echo "FAILED: $*"
    cat /tmp/serve.log /tmp/upstream.log 2>/dev/null || true
    exit 1
}

say install
printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d # no service is started in a root without an init
chmod 755 /usr/sbin/policy-rc.d
apt-get -q update
apt-get -q -y install --no-install-recommends /debs/*.deb nginx curl ca-certificates
hapax --version
id hapax
[ "$(stat -c '%a %U %G' /etc/hapax)" = '750 root hapax' ] || fail "/etc/hapax: $(stat -c '%a %U %G' /etc/hapax)"
[ -e /etc/nginx/modules-enabled/50-mod-http-hapax.conf ] || fail 'nginx does not load the module'
nginx -t

say 'a replay, as the user of the services'
printf 'daemon off; pid /tmp/upstream.pid; error_log /tmp/upstream.log; events {}
http { access_log off; server { listen 127.0.0.1:7001; return 201 "$request_id\\n"; } }\n' >/tmp/upstream.conf
nginx -c /tmp/upstream.conf &
upstream=$!
install -d -o hapax -g hapax /var/lib/hapax
su -s /bin/sh hapax -c 'exec hapax serve --upstream http://127.0.0.1:7001 --listen 127.0.0.1:7000 \
    --store rocksdb:/var/lib/hapax/try' >/tmp/serve.log 2>&1 &
tries=0
until grep -q 'stands before' /tmp/serve.log; do
    tries=$((tries + 1))
    [ $tries -lt 600 ] || fail 'serve is not ready within 60 s'
    sleep 0.1
done
post() { curl -sS -X POST -H "Idempotency-Key: \"$1\"" -d x http://127.0.0.1:7000/; }
first=$(post one) again=$(post one) other=$(post two)
[ -n "$first" ] && [ "$first" = "$again" ] || fail "one key, two answers: $first, $again"
[ "$first" != "$other" ] || fail "two keys, one answer: $first"
su -s /bin/sh hapax -c 'hapax list --store rocksdb:/var/lib/hapax/try' | grep -c completed | grep -qx 2 || fail 'list does not show both'

say 'killed, and started again'
pkill -9 -u hapax || fail 'nothing was killed'
tries=0
while pgrep -u hapax >/dev/null; do
    tries=$((tries + 1))
    [ $tries -lt 600 ] || fail 'what was killed is still there after 60 s'
    sleep 0.1
done
: >/tmp/serve.log
su -s /bin/sh hapax -c 'exec hapax serve --upstream http://127.0.0.1:7001 --listen 127.0.0.1:7000 \
    --store rocksdb:/var/lib/hapax/try' >/tmp/serve.log 2>&1 &
tries=0
until grep -q 'stands before' /tmp/serve.log; do
    tries=$((tries + 1))
    [ $tries -lt 600 ] || fail 'serve is not ready within 60 s'
    sleep 0.1
done
[ "$(post one)" = "$first" ] || fail 'the answer was lost'
pkill -u hapax -x hapax
kill $upstream
wait || true

say upgrade
apt-get -q -y install --reinstall --no-install-recommends /debs/*.deb

say remove
apt-get -q -y remove 'hapax*' 'libhapax*' libnginx-mod-http-hapax
[ -d /etc/hapax ] && [ -d /var/lib/hapax/try ] || fail 'removing took settings or records'
nginx -t || fail 'nginx misses the module'
dpkg-query -W -f '${Package}\n' '*hapax*' | xargs dpkg --purge
[ ! -e /etc/hapax ] || fail 'purging left /etc/hapax'
[ -d /var/lib/hapax/try ] || fail 'purging took the records'
left=$(find / -xdev -name '*hapax*' ! -path '/proc/*' ! -path '/debs/*' ! -path '/var/lib/hapax*' ! -path '/tmp/*' \
    ! -path '/var/cache/*' ! -path '/var/lib/systemd/*' 2>/dev/null || true)
[ -z "$left" ] || fail "left behind: $left"
echo 'packages hold'
