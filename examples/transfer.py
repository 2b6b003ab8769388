#!/usr/bin/python3
"""Moves money once per key, however often it is called and whatever dies on the way:

    transfer.py CONNINFO order-17 alice bob 100      claimed: moved 100 from alice to bob
    transfer.py CONNINFO order-17 alice bob 100      completed: moved 100 from alice to bob
    transfer.py CONNINFO order-17 alice bob 999      mismatch:

Debit, credit and the record of the operation are one transaction. The tables are those of transfer.sql.
Exit code: 0 moved, 1 not, 2 usage or database.
"""
import sys
import time

import psycopg2
import psycopg2.errors


def transfer(conn, key, debit, credit, amount):
    """(verdict, receipt) of the operation; runs it unless it was done."""
    with conn, conn.cursor() as cursor:  # commits, or rolls back on any exception
        cursor.execute("SELECT verdict, body, token FROM hapax.begin('transfers', %s, fingerprint => hapax.digest("
                       "VARIADIC %s::bytea[]))", (key, [part.encode() for part in (debit, credit, amount)]))
        verdict, body, token = cursor.fetchone()
        if verdict != "claimed":
            return verdict, bytes(body or b"").decode()
        cursor.execute("UPDATE accounts SET balance = balance - %s WHERE name = %s", (amount, debit))
        cursor.execute("UPDATE accounts SET balance = balance + %s WHERE name = %s", (amount, credit))
        cursor.execute("INSERT INTO transfers (debit, credit, amount) VALUES (%s, %s, %s)", (debit, credit, amount))
        receipt = f"moved {amount} from {debit} to {credit}"
        cursor.execute("SELECT FROM hapax.complete(%s, 201, body => %s)", (token, receipt.encode()))
    return verdict, receipt


def main(conninfo, *words):
    for pause in (0.2, 0.4, 0.8, 1.6, 3.2, None):
        try:
            conn = psycopg2.connect(conninfo)
            try:
                verdict, receipt = transfer(conn, *words)
            finally:
                conn.close()
            print(f"{verdict}: {receipt}", flush=True)
            return 0 if verdict in ("claimed", "completed") else 1
        except psycopg2.errors.IntegrityError as error:  # too little money, no such account
            print(f"not moved: {error.diag.message_primary}", file=sys.stderr)
            return 1
        except (psycopg2.OperationalError, psycopg2.InterfaceError) as error:
            # Nothing was done (40001, a deadlock, no connection), or it was done and the reply to COMMIT was lost. In
            # both cases it is right to ask again.
            if pause is None:
                print(f"transfer: {error}".strip(), file=sys.stderr)
                return 2
            time.sleep(pause)


if __name__ == "__main__":
    if len(sys.argv) != 6:
        sys.exit("usage: transfer.py CONNINFO KEY FROM TO AMOUNT")
    sys.exit(main(*sys.argv[1:]))
