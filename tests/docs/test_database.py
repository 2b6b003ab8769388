"""docs/database.md: what it tells who owns the database to type."""
import re
import subprocess

from conftest import BUILD, PATIENCE, ROOT
from postgres_server import Postgres

PAGE = (ROOT / "docs/database.md").read_text()


# The roles that the page makes, and who may do what by them. The logins are the reader's own.
def test_the_roles_of_the_page_have_their_rights(hapax):
    def uri_of(login):
        return f"postgres://{login}@127.0.0.1:{server.port}/shop"

    block, = re.findall(r"```sh\n(.*?)```", PAGE, re.S)
    with Postgres().start() as server:
        server.psql("CREATE DATABASE shop")
        for login in ("shop_gate", "oncall", "shop_api"):
            server.psql(f"CREATE ROLE {login} LOGIN")
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            line = re.sub(r"postgres://(dba|hapax_owner)@db/shop",
                          lambda found: uri_of("postgres" if found[1] == "dba" else found[1]), line)
            done = hapax.run("bash", "-c", f"PATH={BUILD}:$PATH; {line}")
            assert done.code == 0, f"{line}: {done.err}"
        assert hapax("list", "--store", uri_of("oncall")).code == 0
        assert "has a secret" in hapax("show", "--store", uri_of("oncall"), "k").err
        for login in ("shop_gate", "shop_api"):
            assert "permission denied" in hapax("list", "--store", uri_of(login)).err
            assert hapax("check", "--store", uri_of(login)).code in (0, 1)


# The page's SQL runs; a dump without records is taken up by init and knows no operation; the schema can be dropped.
def test_records_are_looked_at_left_out_of_a_dump_and_dropped(hapax, folder):
    looks, index = re.findall(r"```sql\n(.*?)```", PAGE, re.S)
    dump, = re.findall(r"`pg_dump (.*?)`", PAGE)
    drop, = re.findall(r"`(DROP .*?)`", PAGE)
    with Postgres().start() as server:
        uri, other = server.uri(server.database()), server.database()
        assert hapax("init", "--store", uri).code == 0
        hapax.completed(uri, "k")
        server.psql("SELECT pg_stat_force_next_flush()", uri.rpartition("/")[2])
        assert server.psql(looks, uri.rpartition("/")[2]).count("|") == 3
        server.psql(index, uri.rpartition("/")[2])
        words = ["bash", "-c", f"pg_dump {dump} {uri} | psql -v ON_ERROR_STOP=1 {server.uri(other)}"]
        subprocess.run(words, check=True, capture_output=True, timeout=PATIENCE)
        assert hapax("init", "--store", server.uri(other)).code == 0
        assert hapax("show", "--store", server.uri(other), "k").code == 1
        hapax.completed(server.uri(other), "k")
        server.psql(drop, other)
        assert server.psql("SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
                           " WHERE n.nspname = 'hapax'", other) == "0"
