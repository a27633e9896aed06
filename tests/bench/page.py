"""The page of results, with its chart beside it:

    python -m bench.page results.json docs/performance.md

Writes what stands between the two marks, and a whole page where there is none;
what people wrote around the marks stays."""

import argparse
import statistics
from pathlib import Path

from .plot import chart
from .report import markdown
from .results import Results

BEGIN = "<!-- From here on written by `python -m bench.page`. -->"
END = "<!-- Up to here. -->"

HEAD = """# How fast it is

Figures of one machine; compare those of one table with each other. Each is the median of several runs, measured in one
go and in alternating order; the spread is the least and the greatest run.
"""

REPEAT = """## How to repeat

`make bench` builds, measures everything and takes a few hours; from the folder `tests`, with `WAL2DELTA_PG_CONFIG`
naming the pg_config of a PostgreSQL 17 that has wal2delta installed, one group, or a smaller load:

```sh
python -m bench --only compare,snapshot --rows 2000000 --runs 3 --output results.json
python -m bench.page results.json ../docs/performance.md
```

The servers are throw-away ones in `$TMPDIR`, which needs about 20 GB. `wal2json` and `decoderbufs` are measured where
they are installed. The code is in `tests/bench`; the script that wal2delta is compared with is
`tests/bench/plain_script.py`.
"""

# Settings that change nothing that is measured.
UNTOLD = ("listen_addresses", "log_line_prefix", "shared_preload_libraries")


def machine(results):
    rows = "\n".join(f"| {what} | {told} |" for what, told in results.machine.items())
    return f"## Machine\n\n| | |\n| --- | --- |\n{rows}\n"


def server(results):
    """The settings of most groups, and what single groups have instead."""
    groups = list(results.groups.values())
    names = list(dict.fromkeys(name for group in groups for name in group.settings if name not in UNTOLD))
    usual = {name: statistics.mode(group.settings.get(name) for group in groups) for name in names}
    parts = ["The servers' settings: " + told(usual) + "; PostgreSQL's defaults otherwise."]
    for group in groups:
        own = {name: group.settings.get(name) for name in names if group.settings.get(name) != usual[name]}
        if own:
            parts.append(f"{group.title}: {told(own)}.")
    return "\n\n".join(parts) + "\n"


def told(settings):
    return ", ".join(f"`{name} = {value}`" for name, value in settings.items() if value is not None)


def figures(results, image):
    parts = [f"![{results.groups['compare'].title}]({image})\n"] if "compare" in results.groups else []
    parts += [markdown(group) for group in results.groups.values()]
    return "\n".join([*parts, machine(results), server(results), REPEAT])


def write(results, page):
    picture = page.with_suffix(".svg")
    if "compare" in results.groups:
        picture.write_text(chart(results.groups["compare"]))
    old = page.read_text() if page.exists() else f"{HEAD}\n{BEGIN}\n{END}\n"
    if BEGIN not in old or END not in old:
        raise SystemExit(f"{page}: it does not have the two marks\n{BEGIN}\n{END}")
    before, after = old.split(BEGIN)[0], old.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n\n{figures(results, picture.name)}\n{END}{after}")


def main():
    parser = argparse.ArgumentParser(prog="python -m bench.page", description=__doc__)
    parser.add_argument("results")
    parser.add_argument("page")
    options = parser.parse_args()
    results = Results.read(options.results)
    if not results.groups:
        raise SystemExit(f"{options.results}: no group was measured")
    write(results, Path(options.page))


if __name__ == "__main__":
    main()
