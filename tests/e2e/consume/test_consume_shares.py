"""What the HTTP door stores under the settings of docs/consume.md, "Sharing records with the HTTP door": the same
scope, fingerprint and caller that a message of the same body has (tests/unit/test_consume_ask.c)."""
import hashlib

import pytest

from served import Served


def digest(*parts):
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).hexdigest()


@pytest.mark.parametrize("words, headers", [
    (("--fingerprint", "body"), ()),
    (("--fingerprint", "body", "--caller", "none"), (("Authorization", "Bearer x"),)),
])
def test_the_gate_stores_what_a_message_asks_for(hapax, api, store, words, headers):  # noqa: F811
    served = Served(hapax, api, store, "--scope", "orders", *words)
    try:
        assert served.post("/ok", "k-1", b'{"a": 1}', headers).status == 200
        socket = f"unix:{store.removeprefix('rocksdb:')}/keeper.sock"
        record = hapax("show", "--store", socket, "--scope", "orders", "k-1", "--json").json
        assert record["fingerprint"] == digest(hashlib.sha256(b'{"a": 1}').digest())
        assert record["caller"] == digest(b"")
    finally:
        served.process.terminate()
        served.process.wait(60)
