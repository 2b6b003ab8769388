#!/bin/sh
# What a stranger does on a machine that has nothing but Debian: installs the packages of /debs,
# gets a first answer and its replay, and removes them. Runs in a root of its own (try); its last
# line is "packages hold".
set -eu
export DEBIAN_FRONTEND=noninteractive
gate=http://127.0.0.1:7000 api=http://127.0.0.1:7001
store=rocksdb:/var/lib/hapax/try

say() { echo "== $*"; }

fail() {
    echo "FAILED: $*"
    cat /tmp/serve.log /tmp/upstream.log 2>/dev/null || true
    exit 1
}

# Until a command succeeds, for 60 s: until_done COMMAND…
until_done() {
    tries=0
    until "$@" >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || fail "not within 60 s: $*"
        sleep 0.1
    done
}

as_hapax() { su -s /bin/sh hapax -c "$1"; }

serve() {
    : >/tmp/serve.log
    as_hapax "exec hapax serve --upstream $api --listen ${gate#http://} --store $store" \
        >/tmp/serve.log 2>&1 &
    until_done grep 'stands before' /tmp/serve.log
}

post() { curl -sS -X POST -H "Idempotency-Key: \"$1\"" -d x $gate/; }

nobody_is_left() { ! pgrep -u hapax; }

say install
printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d # starts no service: there is no init
chmod 755 /usr/sbin/policy-rc.d
apt-get -q update
apt-get -q -y install --no-install-recommends /debs/*.deb nginx curl ca-certificates
hapax --version
id hapax
mode=$(stat -c '%a %U %G' /etc/hapax)
[ "$mode" = '750 root hapax' ] || fail "/etc/hapax: $mode"
[ -e /etc/nginx/modules-enabled/50-mod-http-hapax.conf ] || fail 'nginx does not load the module'
nginx -t

say 'a replay, as the user of the services'
cat >/tmp/upstream.conf <<'END'
daemon off; pid /tmp/upstream.pid; error_log /tmp/upstream.log; events {}
http { access_log off; server { listen 127.0.0.1:7001; return 201 "$request_id\n"; } }
END
nginx -c /tmp/upstream.conf &
upstream=$!
install -d -o hapax -g hapax /var/lib/hapax
serve
first=$(post one) again=$(post one) other=$(post two)
[ -n "$first" ] && [ "$first" = "$again" ] || fail "one key, two answers: $first, $again"
[ "$first" != "$other" ] || fail "two keys, one answer: $first"
listed=$(as_hapax "hapax list --store $store" | grep -c completed || true)
[ "$listed" = 2 ] || fail "list shows $listed of 2"

say 'killed, and started again'
pkill -9 -u hapax || fail 'nothing was killed'
until_done nobody_is_left
serve
[ "$(post one)" = "$first" ] || fail 'the answer was lost'
pkill -u hapax -x hapax
kill $upstream
wait || true

say 'a user of the group of sockets, at the keeper as its unit starts it'
useradd -M -G hapax-door guest
as_guest() { su -s /bin/sh guest -c "$1"; }
kept=unix:/var/lib/hapax/store/keeper.sock
unit=$(dpkg -L hapax | grep '/hapax-keep.service$')
chmod "$(sed -n 's/^StateDirectoryMode=//p' "$unit")" /var/lib/hapax
as_hapax "exec $(sed -n 's/^ExecStart=//p' "$unit")" >/tmp/keep.log 2>&1 &
until_done grep 'hapax keep: holding' /tmp/keep.log
as_guest "hapax run --store $kept guest-1 -- true" || fail 'the group cannot use the store'
! as_guest "hapax list --store $kept" || fail 'the group lists operations'
! as_guest 'ls /etc/hapax' || fail 'the group lists /etc/hapax'
pkill -u hapax -x hapax
wait || true

say upgrade
apt-get -q -y install --reinstall --no-install-recommends /debs/*.deb

say 'units, with a systemctl that only writes down'
mkdir -p /run/systemd/system
printf '#!/bin/sh\necho "$*" >>/tmp/systemctl.log\n' >/usr/bin/systemctl
chmod 755 /usr/bin/systemctl
mv /usr/sbin/policy-rc.d /tmp/
/var/lib/dpkg/info/hapax.prerm upgrade 0
/var/lib/dpkg/info/hapax.postinst configure 0
grep daemon-reload /tmp/systemctl.log || fail 'an upgrade leaves old units in force'
! grep stop /tmp/systemctl.log || fail 'an upgrade stops units'
/var/lib/dpkg/info/hapax.prerm remove
grep 'stop.* hapax-serve@\*.service .* hapax-keep.service' /tmp/systemctl.log ||
    fail 'units outlive the package'
mv /tmp/policy-rc.d /usr/sbin/
rm -r /run/systemd/system /usr/bin/systemctl

say remove
apt-get -q -y remove 'hapax*' 'libhapax*' libnginx-mod-http-hapax
[ -d /etc/hapax ] && [ -d /var/lib/hapax/try ] || fail 'removing took settings or records'
nginx -t || fail 'nginx misses the module'
dpkg-query -W -f '${Package}\n' '*hapax*' | xargs dpkg --purge
[ ! -e /etc/hapax ] || fail 'purging left /etc/hapax'
[ -d /var/lib/hapax/try ] || fail 'purging took the records'
others='^/(proc|debs|tmp|var/(cache|lib/(hapax|systemd)))'
left=$(find / -xdev -name '*hapax*' | grep -v -E "$others" || true)
[ -z "$left" ] || fail "left behind: $left"
echo 'packages hold'
