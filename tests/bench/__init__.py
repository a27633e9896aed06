"""Benchmarks, beside the harness of the whole-cluster tests and on its clusters:

    python -m bench --only compare --rows 2000000 --runs 3 --output results.json
    python -m bench.plot results.json performance.svg
    python -m bench.page results.json performance.md

Everything that is compared is measured in the same run, in alternating order.
A result holds the figures of each run; medians, spread and ratios are made
from them when they are shown."""
