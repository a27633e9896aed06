"""What a benchmark measured: groups of lines, each with the figures of every
run, and what is worked out from them."""

import json
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path

MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Column:
    """One figure of a line. `divisor` brings it from base units (seconds,
    bytes, counts) to what the label says."""

    key: str
    label: str
    digits: int = 2
    divisor: float = 1


@dataclass
class Line:
    """`section` parts a table; ratios are taken to the section's baseline."""

    what: str
    section: str = ""
    runs: list = field(default_factory=list)

    def values(self, key):
        return [run[key] for run in self.runs if run.get(key) is not None]

    def median(self, key):
        values = self.values(key)
        return statistics.median(values) if values else None


@dataclass
class Group:
    """The first column is what the group is about: it is shown with its
    spread, and with its ratio to the line named `baseline`."""

    name: str
    title: str
    about: str
    columns: list
    baseline: str = ""
    options: dict = field(default_factory=dict)
    settings: dict = field(default_factory=dict)
    lines: list = field(default_factory=list)

    def add(self, what, figures, section=""):
        line = next((line for line in self.lines if (line.what, line.section) == (what, section)), None)
        if line is None:
            line = Line(what, section)
            self.lines.append(line)
        line.runs.append(figures)

    def ratio(self, line):
        """The line's median over the baseline's, or None."""
        key = self.columns[0].key
        base = next((one for one in self.lines if (one.what, one.section) == (self.baseline, line.section)), None)
        if base is None or not base.median(key) or line.median(key) is None:
            return None
        return line.median(key) / base.median(key)


class Results:
    """The groups of one machine, kept in a JSON file. A group that is measured
    again replaces its older self; another machine's file is begun anew."""

    def __init__(self, machine, file=None):
        self.machine, self.file, self.groups = machine, file and Path(file), {}
        if self.file and self.file.exists():
            older = Results.read(self.file)
            if older.machine == machine:
                self.groups = older.groups

    @classmethod
    def read(cls, file):
        told = json.loads(Path(file).read_text())
        results = cls(told["machine"])
        for group in told["groups"]:
            columns = [Column(**column) for column in group.pop("columns")]
            lines = [Line(**line) for line in group.pop("lines")]
            results.groups[group["name"]] = Group(columns=columns, lines=lines, **group)
        return results

    def put(self, group):
        self.groups[group.name] = group
        if self.file:
            told = {"machine": self.machine, "groups": [asdict(one) for one in self.groups.values()]}
            part = self.file.with_name(self.file.name + ".part")
            part.write_text(json.dumps(told, indent=1) + "\n")
            part.replace(self.file)
