#!/usr/bin/env python3
"""Makes a C string of text files, so that what runs inside a server is a file one can read and the library
still needs none: embed.py NAME OUT FILE…  The C source defines `const char NAME[]`. Where the text says @DIGEST@, the
string has the SHA-256 of the text."""
import hashlib
import sys


def literal(line):
    out = []
    for byte in line.encode():
        char = chr(byte)
        out.append({'"': '\\"', "\\": "\\\\", "\n": "\\n", "?": "\\?"}.get(char) or
                   (char if 32 <= byte < 127 else f"\\{byte:03o}"))
    return f'    "{"".join(out)}"'


def main(name, out, *files):
    text = "".join(open(file, encoding="utf-8").read() for file in files)
    text = text.replace("@DIGEST@", hashlib.sha256(text.encode()).hexdigest())
    with open(out, "w", encoding="utf-8") as source:
        source.write(f"extern const char {name}[];\nconst char {name}[] =\n")
        source.write("\n".join(map(literal, text.splitlines(keepends=True))) + ";\n")


main(*sys.argv[1:])
