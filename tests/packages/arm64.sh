#!/usr/bin/env bash
# What tests/packages/arm64 runs inside.
set -euo pipefail
export LC_ALL=C.UTF-8 PYTHONDONTWRITEBYTECODE=1
cd /work/source
git init -q . && git add -A

qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64)
magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
printf '%s' ":aarch64:M::$magic:$mask:$qemu:F" >/proc/sys/fs/binfmt_misc/register

cat >../arm64.ini <<'END'
[binaries]
c = 'aarch64-linux-gnu-gcc'
ar = 'aarch64-linux-gnu-ar'
strip = 'aarch64-linux-gnu-strip'
pkgconfig = 'pkg-config'
pkg-config = 'pkg-config'

[properties]
needs_exe_wrapper = false
pkg_config_libdir = ['/usr/lib/aarch64-linux-gnu/pkgconfig', '/usr/share/pkgconfig']

[host_machine]
system = 'linux'
cpu_family = 'aarch64'
cpu = 'aarch64'
endian = 'little'
END
dpkg-query -W -f '${Package} ${Version} ${Architecture}\n' gcc-aarch64-linux-gnu 'qemu-user*' \
    librocksdb-dev:arm64 libssl-dev:arm64 nginx-dev
meson setup build --cross-file ../arm64.ini -Dwerror=true >build.log || { cat build.log && exit 1; }
CC=aarch64-linux-gnu-gcc DEB_HOST_ARCH=arm64 tools/build build
file=$(od -An -tx1 -j18 -N2 build/hapax)
[ "$file" = ' b7 00' ]
build/hapax --version
# Without those that look at the build by this machine's own tools.
meson test -C build --list --suite unit | sed 's/.* \/ //' |
    grep -vx 'pure\|exports\|headers' >names
mapfile -t names <names
meson test -C build --num-processes "$(nproc)" --timeout-multiplier 10 --print-errorlogs \
    "${names[@]}"
# test_rocksdb needs a second user, and this namespace has one.
meson test -C build --num-processes 1 --timeout-multiplier 10 --print-errorlogs \
    'store memory' 'store rocksdb' 'store unix' frame
echo "$1 arm64 holds"
