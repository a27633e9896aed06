"""Runs the benchmarks; each group's table goes to the standard output when it
is done, all figures to --output."""

import argparse
import signal
import sys
import time

from harness.cluster import Clusters

from . import compare, growth, latency, snapshot, throughput
from .machine import describe
from .report import markdown
from .results import Results
from .shapes import SHAPES

GROUPS = {
    "compare": compare.compare,
    "snapshot": snapshot.snapshot,
    "shapes": compare.shapes,
    "throughput": throughput.throughput,
    "latency": latency.latency,
    "intervals": latency.intervals,
    "tables": growth.tables,
    "sizes": growth.sizes,
    "commits": growth.commits,
}

# The group compare has the shape orders.
OTHERS = [name for name in SHAPES if name != "orders"]


def names(known):
    """A parser of a list of known names, separated by commas."""

    def parse(text):
        chosen = text.split(",")
        unknown = [name for name in chosen if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not one of {', '.join(known)}")
        return chosen

    return parse


def arguments():
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    add = parser.add_argument
    add("--only", type=names(GROUPS), default=list(GROUPS), help=f"groups, of {', '.join(GROUPS)}")
    add("--shapes", type=names(SHAPES), default=OTHERS, help=f"loads of the group shapes, of {', '.join(SHAPES)}")
    add("--rows", type=int, default=2_000_000, help="inserts of the load; all other loads scale with it")
    add("--runs", type=int, default=3)
    add("--seconds", type=int, default=60, help="of each measurement with pgbench")
    add("--rate", type=int, default=5000, help="transactions per second of latency and intervals")
    add("--scale", type=int, default=20, help="pgbench's scale factor in throughput")
    add("--commits", type=int, default=20_000, help="how far the group commits goes")
    add("--largest", action="store_true", help="sizes: up to 50 times --rows; 20 GB of WAL at the default")
    add("--output", help="JSON file; groups that are in it and not measured now stay, if the machine is the same")
    return parser.parse_args()


def main():
    options = arguments()
    begun = time.monotonic()

    def say(words):
        print(f"[{time.monotonic() - begun:7.1f} s] {words}", file=sys.stderr, flush=True)

    # Ended from outside, a run still ends its servers.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    results = Results(describe(), options.output)
    clusters = Clusters()
    try:
        for name in options.only:
            group = GROUPS[name](clusters, options, say)
            results.put(group)
            print(markdown(group), flush=True)
    finally:
        clusters.close()


if __name__ == "__main__":
    main()
