"""What lies on the disk of a Delta table: rows, files, bytes, versions."""

import json
from pathlib import Path


def size(folder):
    """Bytes of all files below a folder, its Delta logs included."""
    return sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())


def commits(table, since=0):
    """(version, actions) of the log's commits from `since` on."""
    for file in sorted((Path(table) / "_delta_log").glob("*.json")):
        if file.stem.isdigit() and int(file.stem) >= since:
            yield int(file.stem), [json.loads(line) for line in file.read_text().splitlines() if line.strip()]


def added(table, since=0):
    """(version, add action) of each file that brought rows; what compaction
    wrote again is left out."""
    for version, actions in commits(table, since):
        for action in actions:
            if action.get("add", {}).get("dataChange"):
                yield version, action["add"]


def rows(tables):
    """Rows that all commits of some Delta tables brought, by their statistics."""
    return sum(json.loads(add["stats"])["numRecords"] for table in tables for _, add in added(table))


def last_version(table):
    return max(int(file.stem) for file in (Path(table) / "_delta_log").glob("*.json") if file.stem.isdigit())


def files(table, since=0):
    """Files that commits from `since` on wrote: (commits, files with new rows,
    files that compaction wrote)."""
    seen, new, compacted = 0, 0, 0
    for _, actions in commits(table, since):
        adds = [action["add"]["dataChange"] for action in actions if "add" in action]
        seen, new, compacted = seen + 1, new + sum(adds), compacted + len(adds) - sum(adds)
    return seen, new, compacted
