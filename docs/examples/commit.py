"""Deposits of one unit each, every one kept exactly once whatever fails on the
way: commit.py DSN COUNT prints "kept KEY" for each, when it is sure (psycopg 3)."""

import sys
import time

import psycopg


class Cancelled(Exception):
    """The commit's wait for a standby was cancelled."""


class Store:
    """One connection, made anew whenever it breaks."""

    def __init__(self, dsn):
        self.dsn, self.conn, self.cancelled = dsn, None, False

    def notice(self, diag):
        # It has no code of its own; the server's lc_messages is C.
        if (diag.message_primary or "").startswith("canceling wait for synchronous replication"):
            self.cancelled = True

    def drop(self):
        if self.conn is not None:
            self.conn.close()
            self.conn = None

    def once(self, key, work):
        """Does work in a transaction of its own, exactly once for each key, and
        returns when that is certain."""
        wait = 0.01
        while True:
            try:
                return self.attempt(key, work)
            except (psycopg.DataError, psycopg.IntegrityError, psycopg.ProgrammingError):
                raise  # trying again would end alike
            except (psycopg.Error, Cancelled):
                self.drop()
                time.sleep(wait)
                wait = min(2 * wait, 1)

    def attempt(self, key, work):
        if self.conn is None:
            self.conn = psycopg.connect(self.dsn)
            self.conn.add_notice_handler(self.notice)
        self.cancelled = False
        with self.conn.transaction():
            # It writes also when the key is there already: only a commit that
            # writes waits for a standby, and so proves that everything before it
            # is kept.
            (tries,) = self.conn.execute(
                "INSERT INTO done (key, tries) VALUES (%s, 1) "
                "ON CONFLICT (key) DO UPDATE SET tries = done.tries + 1 RETURNING tries",
                (key,),
            ).fetchone()
            if tries == 1:
                work(self.conn)
        if self.cancelled:
            raise Cancelled


def main(dsn, count):
    store = Store(dsn)
    for i in range(count):
        key = f"deposit-{i}"  # drawn once for each piece of work, before the first attempt
        store.once(key, lambda conn: conn.execute("UPDATE account SET balance = balance + 1"))
        print("kept", key, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
