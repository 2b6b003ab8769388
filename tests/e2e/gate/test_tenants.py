"""Two tenants at the gate with equal keys, paths and bodies, told apart by each credential in turn."""
import ssl
import subprocess

import gate as g
import pytest
import tenants

CREDENTIALS = ("Authorization", "Cookie", "X-Api-Key", "Api-Key", "X-Auth-Token", "X-Access-Token", "certificate")


def certificate(folder, name):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                    "-days", "2", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem"],
                   cwd=folder, check=True, capture_output=True)


def connect(folder, gate, port, name, tenant):
    """A tenant's connection: with a certificate of the tenant's own where that is the credential."""
    connection = g.Connection(port if name == "certificate" else gate.port)
    if name == "certificate":
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        tls.check_hostname = False
        tls.load_verify_locations(folder / "gate.pem")
        tls.load_cert_chain(folder / f"{tenant}.pem", folder / f"{tenant}.key")
        connection.socket = tls.wrap_socket(connection.socket)
        connection.file = connection.socket.makefile("rb")
    return connection


@pytest.mark.parametrize("owned", [True, pytest.param(False, marks=pytest.mark.ci)], ids=["owner", "caller"])
def test_two_tenants(make_gate, api, folder, owned):  # promise 8
    """Not one foreign tag, no operation run twice, and with an owner none swallowed."""
    for name in ("gate", "a", "b"):
        certificate(folder, name)
    port = g.free_port()
    proxy = f"location / {{ proxy_pass http://127.0.0.1:{api.port}; }}"
    owner = ["hapax_owner $http_authorization$http_cookie$http_x_api_key$http_api_key$http_x_auth_token"
             "$http_x_access_token;", "hapax_owner $ssl_client_s_dn;"] if owned else ["", ""]
    gate = make_gate(f"""keepalive_requests 1000000000;
        server {{ LISTEN hapax on; {owner[0]} {proxy} }}
        server {{ listen 127.0.0.1:{port} ssl; ssl_certificate {folder}/gate.pem;
                  ssl_certificate_key {folder}/gate.key; ssl_verify_client optional_no_ca;
                  hapax on; {owner[1]} {proxy} }}""", workers=2).start()
    for name in CREDENTIALS:
        of = {tenant: connect(folder, gate, port, name, tenant) for tenant in "ab"}

        def send(tenant, key, body, of=of, name=name):
            headers = [("X-Tag", tenant)] + ([(name, f"token={tenant}")] if name != "certificate" else [])
            of[tenant].send(g.request("POST", "/tagged", key, body.encode(), headers))
            answer = of[tenant].response()
            if answer.status != 200:
                return None, answer.problem
            tag, _, run = answer.body.decode().partition(" ")
            return tag, run

        runs = tenants.play(name, owned, send, -(-tenants.REQUESTS // len(CREDENTIALS)))
        assert {key: api.count(key) for key in runs} == runs
        for connection in of.values():
            connection.close()
