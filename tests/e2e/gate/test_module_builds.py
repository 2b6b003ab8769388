"""The module's sources fit both shapes of nginx's header lines: as the nginx at hand has them, and as
nginx 1.23 and later do, where ngx_table_elt_t has a `next` and lists of one header are chained by it.

Where only an older nginx is installed, the newer shape is made from its headers: a copy is patched as
far as a module can see the change. A newer nginx that lies about its version must not compile, or
the case would prove nothing. Sources are parsed with all warnings, not linked.
"""
import pathlib
import re
import shlex
import shutil
import subprocess

import pytest

from conftest import BUILD, ROOT

MAKEFILE = BUILD / "nginx/objs/Makefile"
SOURCES = sorted((ROOT / "nginx").glob("*.c"))
BRANCHED = ROOT / "nginx/ngx_http_hapax_outcome.c"  # has a branch by nginx_version

CHAINED = [  # file, pattern, replacement, how often
    ("core/nginx.h", r"(#define nginx_version\s+)\d+", r"\g<1>1023000", 1),
    ("core/ngx_hash.h", r"(u_char\s+\*lowcase_key;\n)(\} ngx_table_elt_t;)",
     r"\1    ngx_table_elt_t  *next;\n\2", 1),
    ("core/ngx_hash.h", r"typedef struct (\{[^}]*\}) ngx_table_elt_t;",
     r"typedef struct ngx_table_elt_s  ngx_table_elt_t;\nstruct ngx_table_elt_s \1;", 1),
    ("http/ngx_http_request.h", r"ngx_array_t\s+(x_forwarded_for|cache_control|link);", r"ngx_table_elt_t *\1;", 3),
    ("http/ngx_http_request.h", r"ngx_array_t\s+cookies;", "ngx_table_elt_t *cookie;", 1),
    ("http/ngx_http_upstream.h", r"ngx_array_t\s+cache_control;", "ngx_table_elt_t *cache_control;", 1),
    ("http/ngx_http_upstream.h", r"ngx_array_t\s+cookies;", "ngx_table_elt_t *set_cookie;", 1),
]


class Tree:
    """nginx's headers, and the compiler and flags that nginx's own build takes for the module."""

    def __init__(self, folder):
        text = MAKEFILE.read_text()
        self.compiler = shlex.split(re.search(r"^CC =(.*)$", text, re.M)[1])
        self.flags = shlex.split(re.search(r"^CFLAGS =(.*)$", text, re.M)[1])
        includes = re.search(r"^ALL_INCS =((?:.*\\\n)*.*)$", text, re.M)[1].replace("\\\n", " ")
        self.includes = [word for word in shlex.split(includes) if word != "-I"]
        source = re.search(r"-ffile-prefix-map=(\S+)=\.", text)
        self.origin = pathlib.Path(source[1] if source else "/usr/share/nginx/src") / "src"
        self.src = folder / "src"

    def copy(self):
        shutil.copytree(self.origin, self.src, ignore=lambda folder, names: [
            name for name in names if "." in name and not name.endswith(".h")])
        return self

    @property
    def chained(self):
        text = (self.src / "core/ngx_hash.h").read_text()
        return "next;" in re.search(r"struct[^{]*\{[^}]*lowcase_key;[^}]*\}", text)[0]

    def chain(self, keep_version=False):
        for name, pattern, replacement, times in CHAINED:
            if keep_version and name == "core/nginx.h":
                continue
            path = self.src / name
            text, found = re.subn(pattern, replacement, path.read_text())
            assert found == times, f"{name} has {found} of {pattern}"
            path.write_text(text)

    def parse(self, source):
        """What the compiler says of SOURCE; nothing where all is well."""
        includes = [f"-I{self.src.parent / path if path.startswith('src') else path}" for path in self.includes]
        done = subprocess.run([*self.compiler, "-fsyntax-only", *self.flags, "-Werror", *includes, str(source)],
                              capture_output=True, text=True, timeout=120)
        assert done.returncode == 0 or done.stderr
        return done.stderr


@pytest.fixture
def tree(folder):
    tree = Tree(folder)
    if not tree.origin.is_dir():
        pytest.skip(f'no nginx sources in "{tree.origin}"')
    return tree.copy()


@pytest.fixture
def older(tree):
    if tree.chained:
        pytest.skip("the nginx at hand is of the newer shape already")
    return tree


@pytest.mark.ci
def test_every_source_fits_the_nginx_at_hand(tree):
    """As its own build does: no warning with its flags."""
    assert len(SOURCES) >= 11
    assert {source.name: said for source in SOURCES if (said := tree.parse(source))} == {}


@pytest.mark.ci
def test_every_source_fits_chained_header_lines(older):
    """ngx_table_elt_t with a `next`, and nginx_version 1023000: no warning either."""
    older.chain()
    assert older.chained
    assert {source.name: said for source in SOURCES if (said := older.parse(source))} == {}


def test_the_branch_is_chosen_by_the_version(older):
    """Chained header lines under an older version number fail: the case above does see the other shape."""
    older.chain(keep_version=True)
    said = older.parse(BRANCHED)
    assert "cache_control" in said and "error" in said, said
