"""Runs the page's snippet for a driver of Python: drive.py psycopg|asyncpg|sqlalchemy|django DSN (test_drivers.py)."""
import asyncio
import concurrent.futures
import importlib
import re
import sys
import threading

driver, dsn = sys.argv[1:]
here = threading.local()
if driver == "django":
    import django
    from django.conf import settings
    host, port, name = re.search(r"@(.*):(\d+)/(\w+)", dsn).groups()
    settings.configure(DATABASES={"default": {
        "ENGINE": "django.db.backends.postgresql", "HOST": host, "PORT": port, "NAME": name, "USER": "postgres",
        "DISABLE_SERVER_SIDE_CURSORS": True}})
    django.setup()
    from django.db import connection
snippet = importlib.import_module("snippet")


def state(error):
    """The SQLSTATE, as the page's table says."""
    source = {"sqlalchemy": lambda: error.orig, "django": lambda: error.__cause__}.get(driver, lambda: error)()
    return getattr(source, "sqlstate", None) or "-"


class Synchronous:
    """A connection of its own for each thread."""

    def call(self, name, *args):
        if driver == "django":
            return getattr(snippet, name)(*args)
        if not hasattr(here, "conn"):
            here.conn = snippet.connect(dsn.replace("postgresql:", "postgresql+psycopg:")
                                        if driver == "sqlalchemy" else dsn)
        return getattr(snippet, name)(here.conn, *args)

    def drop(self):
        if driver == "django":
            connection.close()
        elif hasattr(here, "conn"):
            here.conn.dispose() if driver == "sqlalchemy" else here.conn.close()
            del here.conn

    def complete(self, token):
        statement = "SELECT FROM hapax.complete(%s, 201)"
        if driver == "django":
            with connection.cursor() as cursor:
                cursor.execute(statement, [token])
        elif driver == "sqlalchemy":
            with snippet.connect(dsn.replace("postgresql:", "postgresql+psycopg:")).begin() as conn:
                conn.execute(snippet.text("SELECT FROM hapax.complete(:token, 201)"), {"token": token})
        else:
            with snippet.connect(dsn) as conn:
                conn.execute(statement, (token,))

    def storm(self, n, *args):
        def one(_):
            try:
                return attempt(self.call, "pay_again", *args)
            finally:
                self.drop()

        with concurrent.futures.ThreadPoolExecutor(n) as pool:
            return list(pool.map(one, range(n)))


class Asynchronous:
    loop, conn = asyncio.new_event_loop(), None

    def call(self, name, *args):
        async def run():
            self.conn = self.conn or await snippet.connect(dsn)
            return await getattr(snippet, name)(self.conn, *args)
        return self.loop.run_until_complete(run())

    def drop(self):
        if self.conn:
            self.conn.terminate()
            self.conn = None

    def complete(self, token):
        async def run():
            await (await snippet.connect(dsn)).execute("SELECT FROM hapax.complete($1, 201)", token)
        self.loop.run_until_complete(run())

    def storm(self, n, *args):
        async def one():
            conn = await snippet.connect(dsn)
            try:
                return shown(await snippet.pay_again(conn, *args))
            except Exception as error:
                return f"error {state(error)} {error!r}"
            finally:
                conn.terminate()

        async def run():
            return await asyncio.gather(*(one() for _ in range(n)))
        return self.loop.run_until_complete(run())


def shown(paid):
    return f"ok {paid[0]} {bytes(paid[1] or b'').decode()}"


def attempt(what, *args):
    try:
        return shown(what(*args) or ("", b""))
    except Exception as error:
        return f"error {state(error)} {error!r}"


def main():
    runner = Asynchronous() if driver == "asyncpg" else Synchronous()
    for line in sys.stdin:
        command, *words = line.split()
        if command == "pay":
            answers = [attempt(runner.call, "pay", words[0], int(words[1]))]
        elif command == "storm":
            answers = runner.storm(int(words[0]), words[1], int(words[2]))
        else:
            answers = [attempt(runner.complete, words[0])]
        if any(answer.startswith("error") for answer in answers):
            runner.drop()
        for answer in answers:
            print(answer.replace("\n", " "), flush=True)


main()
