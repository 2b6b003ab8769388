"""Who may come in, and that nobody reads the password: TLS, logins, and what is printed of them."""
import pathlib
import re
import subprocess
import sys

import pytest
from conftest import ROOT, end, read_line

import gate as g

sys.path.insert(0, str(ROOT / "tests/servers"))
from process import family_of, free_port  # noqa: E402
import redis_server  # noqa: E402
from handle import patient  # noqa: E402


Redis = patient(redis_server.Redis)
HUSH = "hu5hhu5h"  # encoded for a URI it is the same


def failure(hapax, *words, **env):
    """What a command says that must fail, as JSON and as text; neither shows the password."""
    said = hapax(*words, "--json", **env)
    text = hapax(*words, **env)
    for result in (said, text):
        assert result.code in (2, 3) and HUSH not in result.out + result.err, result.out + result.err
    assert said.json["text"] in text.err
    return said.json["error"], said.json["text"]


# ---- TLS --------------------------------------------------------------------------------

def openssl(folder, *words):
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


def certify(folder, name, names, days=2, ca="ca"):
    """NAME.pem for these names, with NAME.key, signed by the CA."""
    openssl(folder, "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=hapax test",
            "-keyout", f"{name}.key", "-out", f"{name}.request")
    (folder / "names").write_text(f"subjectAltName={names}\n")
    openssl(folder, "x509", "-req", "-in", f"{name}.request", "-CA", f"{ca}.pem", "-CAkey", f"{ca}.key",
            "-CAcreateserial", "-days", str(days), "-extfile", "names", "-out", f"{name}.pem")


def make_ca(folder, name):
    openssl(folder, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem")


def tls_redis(names):
    redis = Redis(tls=True)
    certify(redis.folder, "other", names)
    redis.options.update(tls_cert_file="other.pem", tls_key_file="other.key")
    return redis


def uri(redis, host="127.0.0.1", **parameters):
    query = "&".join(f"{name}={value}" for name, value in {"timeout": "20s", **parameters}.items())
    return f"rediss://{host}:{redis.port}?{query}"


# The certificate's names decide, whether the URI names a host or its address.
@pytest.mark.some(3)
@pytest.mark.parametrize("names, host, why", [
    ("IP:127.0.0.1", "127.0.0.1", None),
    ("DNS:localhost", "localhost", None),
    ("DNS:localhost", "127.0.0.1", "IP address mismatch"),
    ("DNS:127.0.0.1", "127.0.0.1", "IP address mismatch"),
    ("DNS:example.com", "localhost", "hostname mismatch"),
    ("IP:127.0.0.1", "localhost", "hostname mismatch"),
])
def test_a_certificate_must_be_the_hosts(hapax, names, host, why):
    with tls_redis(names) as redis:
        redis.start()
        store = uri(redis, host, tls_ca=redis.ca)
        if why is None:
            assert hapax("list", "--store", store).code == 0
        else:
            error, text = failure(hapax, "list", "--store", store)
            assert error == "refused" and "its certificate is refused: " + why in text
            assert hapax("list", "--store", store + "&tls_verify=off").code == 0


def test_a_certificate_that_has_run_out_is_refused(hapax):
    with Redis(tls=True) as redis:
        redis.start()
        certify(redis.folder, "old", "IP:127.0.0.1", days=-1)
        redis.do("CONFIG", "SET", "tls-cert-file", "old.pem", "tls-key-file", "old.key")
        redis.forget()
        error, text = failure(hapax, "list", "--store", uri(redis, tls_ca=redis.ca))
        assert error == "refused" and "its certificate is refused: certificate has expired" in text


def test_a_certificate_of_an_unknown_ca_is_refused(hapax):
    with Redis(tls=True) as redis:
        redis.start()
        make_ca(hapax.folder, "stranger")
        for store in (uri(redis), uri(redis, tls_ca=hapax.folder / "stranger.pem")):
            error, text = failure(hapax, "list", "--store", store)
            assert error == "refused" and "its certificate is refused: " in text and "expired" not in text
        assert hapax("list", "--store", uri(redis, tls_verify="off")).code == 0


# The other way round: Redis asks us for a certificate.
def test_a_client_certificate_is_shown_where_it_is_asked_for(hapax):
    with Redis(tls=True, requirepass=HUSH) as redis:
        redis.start()
        certify(redis.folder, "client", "DNS:client")
        redis.do("CONFIG", "SET", "tls-auth-clients", "yes")
        redis.forget()
        own = {"tls_cert": redis.folder / "client.pem", "tls_key": redis.folder / "client.key"}
        store = redis.uri()
        assert hapax("list", "--store", redis.uri(**own)).code == 0
        error, text = failure(hapax, "list", "--store", store)
        assert error == "refused" and "TLS failed: " in text and "certificate" in text


def test_what_is_no_tls_is_no_redis(hapax):
    with Redis() as plain, Redis(tls=True) as encrypted:
        plain.start()
        encrypted.start()
        error, text = failure(hapax, "list", "--store", uri(plain, tls_ca=encrypted.ca, timeout="500ms"))
        assert error in ("refused", "unavailable") and f"127.0.0.1:{plain.port}" in text
        error, text = failure(hapax, "list", "--store", f"redis://127.0.0.1:{encrypted.port}?timeout=500ms")
        assert error == "unavailable"


# Files that cannot be used are named, and a key that everybody can read is refused.
def test_tls_files_must_be_good(hapax):
    make_ca(hapax.folder, "ca")
    certify(hapax.folder, "client", "DNS:client")
    certify(hapax.folder, "another", "DNS:client")
    openssl(hapax.folder, "ec", "-in", "client.key", "-aes128", "-passout", "pass:x", "-out", "locked.key")
    for path in hapax.folder.glob("*.key"):
        path.chmod(0o600)
    (hapax.folder / "nonsense.pem").write_text("nonsense\n")

    def why(error, **files):
        query = "&".join(f"{name}={hapax.folder / value}" for name, value in files.items())
        got, text = failure(hapax, "list", "--store", f"rediss://127.0.0.1:1?{query}")
        assert got == error
        return text

    assert "tls_ca" in why("invalid", tls_ca="absent.pem") and "No such file" in why("invalid", tls_ca="absent.pem")
    assert 'nonsense.pem"' in why("invalid", tls_ca="nonsense.pem")
    assert "No such file" in why("invalid", tls_cert="absent.pem", tls_key="client.key")
    assert "tls_key" in why("invalid", tls_cert="client.pem", tls_key="absent.key")
    assert "mismatch" in why("invalid", tls_cert="client.pem", tls_key="another.key")
    assert "tls_key" in why("invalid", tls_cert="client.pem", tls_key="locked.key")
    (hapax.folder / "client.key").chmod(0o644)
    assert "chmod o-r it" in why("refused", tls_cert="client.pem", tls_key="client.key")


# ---- logins -----------------------------------------------------------------------------

ENCODED = HUSH + "%2F%3F%40%3A%25"


@pytest.fixture(scope="module")
def guarded():
    with Redis(acl=["user default off", f"user shop on >{HUSH}/?@:% ~* &* +@all"]) as redis:
        redis.answers = lambda: "Ready to accept" in redis.log.read_text()
        yield redis.start()


def named(redis, login="", query=""):
    return f"redis://{login}127.0.0.1:{redis.port}{query}{'&' if query else '?'}timeout=20s"


def test_a_login_comes_from_the_uri_a_file_or_the_environment(hapax, guarded):
    secret = hapax.folder / "secret"
    secret.write_text(f"{HUSH}/?@:%\n")
    secret.chmod(0o600)
    env = {"HAPAX_REDIS_USERNAME": "shop", "HAPAX_REDIS_PASSWORD": f"{HUSH}/?@:%"}
    for result in (hapax("list", "--store", named(guarded, f"shop:{ENCODED}@")),
                   hapax("list", "--store", named(guarded, "shop@", f"?password_file={secret}")),
                   hapax("list", "--store", named(guarded), **env),
                   hapax("list", HAPAX_STORE=named(guarded), **env),
                   hapax("init", "--store", named(guarded), **env),
                   hapax("list", "--store", named(guarded, f"shop:{ENCODED}@"),
                         HAPAX_REDIS_USERNAME="nobody", HAPAX_REDIS_PASSWORD="wrong"),
                   hapax("list", "--store", named(guarded, "shop@", f"?password_file={secret}"),
                         HAPAX_REDIS_PASSWORD="wrong")):
        assert result.code == 0, result.err
        assert HUSH not in result.out + result.err


# A login that is refused is no server that is down, whatever Redis calls it.
@pytest.mark.parametrize("login, why", [("", "NOAUTH"), (f"shop:{HUSH}-not@", "WRONGPASS"), (f":{HUSH}@", "WRONGPASS")])
def test_a_login_that_is_refused_is_refused(hapax, guarded, login, why):
    error, text = failure(hapax, "list", "--store", named(guarded, login))
    assert error == "refused" and why in text


def test_a_user_without_a_password_in_the_environment_is_a_mistake(hapax, guarded):
    error, text = failure(hapax, "list", "--store", named(guarded), HAPAX_REDIS_USERNAME="shop")
    assert (error, text) == ("invalid", "HAPAX_REDIS_USERNAME is set, but not HAPAX_REDIS_PASSWORD")


def test_the_environments_login_is_for_redis_alone(hapax, store):
    env = {"HAPAX_REDIS_USERNAME": "shop", "HAPAX_REDIS_PASSWORD": HUSH}
    assert hapax("init", "--store", store, **env).code == 0
    assert hapax("list", "--store", "memory:", **env).code == 0


def test_each_redis_of_a_move_has_a_login(hapax, guarded):
    env = {"HAPAX_REDIS_USERNAME": "shop", "HAPAX_REDIS_PASSWORD": f"{HUSH}/?@:%"}
    one, other = (f"127.0.0.1:{guarded.port}/{db}?timeout=20s" for db in (0, 1))
    for store in (f"redis://{one}+redis://{other}", f"redis://shop:{ENCODED}@{one}+redis://{other}",
                  f"redis://{one}+redis://shop:{ENCODED}@{other}"):
        result = hapax("run", "--store", f"move:{store}", "k", "--", "true", **env)
        assert result.code == 0 and HUSH not in result.out + result.err, result.err


# ---- what is printed --------------------------------------------------------------------

# Every command says why it could not; none says the password.
@pytest.mark.some()
@pytest.mark.parametrize("words", [["list"], ["check"], ["show", "key"], ["resolve", "key", "--forget"], ["purge"],
                                   ["bench", "--seconds", "1"]])
@pytest.mark.parametrize("store", [
    f"redis://:{HUSH}@127.0.0.1:{{port}}", f"redis://u:{HUSH}@127.0.0.1:{{port}}?nonsense=1",
    f"redis://:{HUSH}/{HUSH}@127.0.0.1", f"redsi://u:{HUSH}@127.0.0.1", f"redis+nonsense://:{HUSH}@h",
    f"redis+sentinel://:{HUSH}@127.0.0.1:{{port}}/m", f"redis+cluster://:{HUSH}@127.0.0.1:{{port}}",
    f"postgres://u:{HUSH}@127.0.0.1:{{port}}/d", f"postgres://127.0.0.1:{{port}}/d?password={HUSH}",
    f"postgres://127.0.0.1:{{port}}/d?nonsense=1&sslpassword={HUSH}", f"postgres://u:{HUSH}@h:x/d"])
def test_a_failure_does_not_show_the_password(hapax, store, words):
    uri = store.format(port=free_port())
    for more in ([], ["--json"]):
        result = hapax(*words, "--store", uri, *more)
        assert result.code in (1, 2, 3) or words == ["purge"]  # Redis forgets by itself, wherever it is
        assert HUSH not in result.out + result.err, result.out + result.err


def test_the_environments_password_is_not_shown(hapax):
    env = {"HAPAX_REDIS_USERNAME": "shop", "HAPAX_REDIS_PASSWORD": HUSH}
    store = f"redis://127.0.0.1:{free_port()}"
    assert failure(hapax, "list", "--store", store, **env)[0] == "unavailable"
    assert hapax("init", "--json", "--store", store, **env).json["store"] == store
    assert failure(hapax, "keep", "--store", store, **env)[0] == "invalid"


def test_what_succeeds_does_not_show_the_password(hapax, guarded):
    store = named(guarded, f"shop:{ENCODED}@")
    shown = named(guarded, "shop:***@")
    results = [hapax(*words, "--store", store) for words in (
        ["init"], ["init", "--json"], ["init", "--print"], ["check"], ["check", "--json"], ["list"], ["show", "absent"],
        ["purge"], ["purge", "--json"], ["bench", "--seconds", "1"], ["bench", "--seconds", "1", "--json"])]
    assert all(HUSH not in result.out + result.err for result in results)
    assert [result.code for result in results[:3]] == [0, 0, 0]
    assert results[1].json["store"] == shown
    assert f'in "{shown}"' in results[6].err
    assert f"store     {shown}\n" in results[-2].out and results[-1].json["store"] == shown


# ---- hapax serve ------------------------------------------------------------------------

@pytest.mark.parametrize("login, env", [(f"shop:{ENCODED}@", {}), ("", {"HAPAX_REDIS_USERNAME": "shop",
                                                                      "HAPAX_REDIS_PASSWORD": f"{HUSH}/?@:%"})])
def test_serve_logs_in_and_does_not_show_how(hapax, guarded, login, env):
    api = g.Api()
    port = g.free_port()
    words = ["serve", "--upstream", f"http://127.0.0.1:{api.port}",
             "--listen", f"127.0.0.1:{port}", "--module", g.MODULE,
             "--timeout", "20s"]
    try:
        shown = hapax(*words, "--store", named(guarded, login), "--config-only", **env)
        assert HUSH not in shown.out + shown.err
        process = hapax.start(*words, "--store", named(guarded, login), **env)
        line = read_line(process)
        assert "stands before" in line and HUSH not in line, line + process.stderr.read()
        with g.Connection(port) as connection:
            connection.send(g.request("POST", "/charge", "login-" + (login and "uri"), b"", ()))
            assert connection.response().status == 200
        # a worker has answered, so nginx has named its process by now
        master = pathlib.Path(f"/proc/{family_of(process.pid)[1]}/cmdline").read_text()
        assert HUSH not in master
        conf = pathlib.Path(re.search(r"/[^ \0]*/nginx\.conf", master).group())
        assert conf.stat().st_mode & 0o077 == 0 and HUSH in conf.read_text()
        code, out, err = end_and_read(process)
        assert code == 0 and HUSH not in out + err
    finally:
        api.close()


def end_and_read(process):
    code = end(process)
    return code, process.stdout.read(), process.stderr.read()


# The workers' log names the store, without the password, when it is away.
def test_serve_logs_a_store_that_is_away_without_its_password(hapax):
    api = g.Api()
    port, away = g.free_port(), free_port()
    process = hapax.start("serve", "--upstream", f"http://127.0.0.1:{api.port}",
                          "--listen", f"127.0.0.1:{port}", "--module",
                          g.MODULE, "--store", f"redis://shop:{HUSH}@127.0.0.1:{away}")
    try:
        assert "shop:***@" in read_line(process)
        with g.Connection(port) as connection:
            connection.send(g.request("POST", "/charge", "away-1", b"", ()))
            assert connection.response().status == 503
        _, out, err = end_and_read(process)
        assert HUSH not in out + err
        assert f'store "redis://shop:***@127.0.0.1:{away}" is unavailable' in err
    finally:
        api.close()
