#!/bin/sh
# Builds ngx_http_hapax_module.so, out of tree.
#
#   nginx/build.sh OUTDIR LIBDIR
#
# OUTDIR gets the module and the build's other files; LIBDIR holds libhapax.a. The headers and flags
# are those of Debian's nginx-dev. If NGX_SRC is set, they are those of that nginx source tree,
# configured with NGX_CONF (default: --with-compat --with-http_v2_module --with-http_ssl_module).
# HAPAX_CFLAGS is added to the compiler's flags.
set -eu

fail() {
    echo "nginx/build.sh: $1" >&2
    exit 2
}

[ $# -eq 2 ] || fail "usage: nginx/build.sh OUTDIR LIBDIR"
module=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
out=$(cd "$1" && pwd)
HAPAX_LIBDIR=$(cd "$2" && pwd)
[ -f "$HAPAX_LIBDIR/libhapax.a" ] || fail "no libhapax.a in \"$HAPAX_LIBDIR\""
export HAPAX_LIBDIR

cflags="-std=gnu11 -Wno-unused-parameter ${HAPAX_CFLAGS:-}"
source=${NGX_SRC:-/usr/share/nginx/src}
[ -x "$source/configure" ] || [ -x "$source/auto/configure" ] ||
    fail "no nginx to build against in \"$source\": install nginx-dev, or set NGX_SRC"
cd "$source"
if [ -f ./conf_flags ]; then
    cat > "$out/configure.bash" <<'END'
. ./conf_flags
cflags="$(dpkg-buildflags --get CFLAGS) -fPIC $(dpkg-buildflags --get CPPFLAGS) $cflags"
./configure --with-cc-opt="$cflags" \
    --with-ld-opt="$(dpkg-buildflags --get LDFLAGS) -fPIC -Wl,-z,relro -Wl,-z,now" \
    "${NGX_CONF_FLAGS[@]}" --add-dynamic-module="$module" --builddir="$out/objs"
END
    # shellcheck disable=SC2097,SC2098 # the path is for this shell, the variables are for bash
    module=$module out=$out cflags=$cflags \
        bash -e "$out/configure.bash" > "$out/configure.log" 2>&1 ||
        fail "configure failed: see \"$out/configure.log\""
else
    configure=./auto/configure
    [ -x "$configure" ] || configure=./configure
    # shellcheck disable=SC2086 # several flags
    "$configure" ${NGX_CONF:---with-compat --with-http_v2_module --with-http_ssl_module} \
        --with-cc-opt="-O2 -g -fPIC $cflags" --with-ld-opt="-fPIC" \
        --add-dynamic-module="$module" --builddir="$out/objs" > "$out/configure.log" 2>&1 ||
        fail "configure failed: see \"$out/configure.log\""
fi
make -s -f "$out/objs/Makefile" modules > "$out/make.log" 2>&1 || {
    cat "$out/make.log" >&2
    exit 1
}
# Replaces the file, and does not write over it: an nginx may have it mapped.
cp "$out/objs/ngx_http_hapax_module.so" "$out/objs/new.so"
mv -f "$out/objs/new.so" "$out/ngx_http_hapax_module.so"
