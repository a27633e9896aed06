"""All writers, each in its thread; the load can be held and let go on."""

import threading
from collections import Counter

from harness.waiting import wait_for

# A writer may be in the midst of a large transaction when it is to stop.
PATIENCE = 240


class Gate:
    """Where writers pass between two transactions."""

    def __init__(self):
        self.over = False
        self.open = True
        self.inside = 0
        self.changed = threading.Condition()

    def enter(self):
        """Waits until a transaction may begin; False: the writer shall end."""
        with self.changed:
            self.inside -= 1
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.open or self.over)
            if self.over:
                return False
            self.inside += 1
            return True

    def rest(self, seconds):
        """A writer's pause; it ends when the gate closes."""
        with self.changed:
            self.changed.wait_for(lambda: self.over or not self.open, seconds)

    def close(self):
        with self.changed:
            self.open = False
            self.changed.notify_all()

    def reopen(self):
        with self.changed:
            self.open = True
            self.changed.notify_all()

    def end(self):
        with self.changed:
            self.over = True
            self.changed.notify_all()


class Load:
    def __init__(self, writers):
        self.writers = writers
        self.gate = Gate()
        self.gate.inside = len(writers)
        self.failed = []
        self.threads = [threading.Thread(target=self._work, args=[writer], daemon=True) for writer in writers]

    def _work(self, writer):
        try:
            writer.run(self.gate)
        except BaseException as error:
            self.failed.append(error)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, kind, *_):
        self.gate.end()
        for thread in self.threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a writer does not end"
        if kind is None:
            self.raise_failure()

    def raise_failure(self):
        if self.failed:
            raise self.failed[0]

    def wait_for(self, condition, what, timeout=PATIENCE):
        """As `wait_for`; a writer's failure ends it."""
        wait_for(lambda: self.failed or condition(), timeout, what)
        self.raise_failure()

    def wait_for_transactions(self, count):
        self.wait_for(lambda: self.ends()["committed"] >= count, f"{count} transactions of the load")

    def hold(self):
        """Returns once every writer is between two transactions."""
        self.gate.close()
        self.wait_for(lambda: self.gate.inside == 0, "every writer to end its transaction")

    def let_go(self):
        self.gate.reopen()

    def ends(self):
        return sum((writer.ends.copy() for writer in self.writers), Counter())
