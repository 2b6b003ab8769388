#!/bin/bash -eu
# Builds the targets as tools/fuzz does, by the same script. CC and CFLAGS come with the sanitizer
# of this run. Each target goes to $OUT with its corpus and its dictionary, and with the libraries
# it needs, which are not where it runs: it looks for them in lib/ beside it.
dir=${WORK:-/tmp}/hapax
tests/fuzz/build "$dir" -Drocksdb=disabled
mkdir -p "$OUT/lib"
for corpus in tests/fuzz/corpus/*; do
    name=${corpus##*/}
    cp "$dir/tests/fuzz/libfuzzer_$name" "$OUT/$name"
    ldd "$OUT/$name" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' |
        grep -vE '/(libc|libm|libpthread|ld-linux[^/]*)\.so' |
        xargs -r cp -n -L -t "$OUT/lib"
    python3 - "$OUT/${name}_seed_corpus.zip" "$corpus"/* <<'END'
import sys, zipfile
with zipfile.ZipFile(sys.argv[1], "w") as out:
    for path in sys.argv[2:]:
        out.write(path, path.rsplit("/", 1)[1])
END
    [ ! -f "tests/fuzz/$name.dict" ] || cp "tests/fuzz/$name.dict" "$OUT/$name.dict"
done
