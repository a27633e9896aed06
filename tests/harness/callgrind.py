"""Instructions that a server's process executes, by function, as valgrind's
callgrind counts them: the same ones in every run, unlike seconds."""

import re
import shutil

from .cluster import own

NAME = re.compile(r"c?fn=\((\d+)\)(?: (.*))?")


def available():
    return shutil.which("valgrind") is not None


class Callgrind:
    """For a cluster that is not running: from its next start on every process
    is counted, and leaves its counts when it ends."""

    def __init__(self, cluster):
        self.folder = cluster.folder / "callgrind"
        self.folder.mkdir()
        own(self.folder)
        options = ["--tool=callgrind", "--trace-children=yes", f"--callgrind-out-file={self.folder}/%p"]
        cluster.under = ["valgrind", *options]

    def inclusive(self, pid, function):
        """(calls, instructions with all that it calls) of a function of a process
        that has ended."""
        return inclusive((self.folder / str(pid)).read_text().splitlines(), function)


def inclusive(lines, function):
    names, called, calls, cost = {}, None, 0, 0
    lines = iter(lines)
    for line in lines:
        if line.startswith(("fn=", "cfn=")):
            number, name = NAME.match(line).groups()
            names.setdefault(number, name)
            if line.startswith("cfn="):
                called = names[number]
        elif line.startswith("calls="):
            # The line that follows has the cost of these calls.
            instructions = int(next(lines).split()[-1])
            if called == function:
                calls += int(line.removeprefix("calls=").split()[0])
                cost += instructions
    return calls, cost
