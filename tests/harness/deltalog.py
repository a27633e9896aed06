"""The Delta log as it lies on disk: what each version says, and which rows it
brought. Reads the JSON commits and the Parquet files directly."""

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import pyarrow.parquet as pq

APP_ID = "wal2delta/"


@dataclass(frozen=True)
class Field:
    name: str
    type: str
    nullable: bool
    physical: str


class DeltaLog:
    def __init__(self, path, last=None):
        """Of the table at `path`, up to version `last` if that is given."""
        self.path = Path(path)
        self.commits = {}
        for file in sorted((self.path / "_delta_log").glob("*.json")):
            if file.stem.isdigit() and (last is None or int(file.stem) <= last):
                lines = file.read_text().splitlines()
                self.commits[int(file.stem)] = [json.loads(line) for line in lines if line.strip()]

    @property
    def version(self):
        return max(self.commits)

    def actions(self, kind, version=None):
        """(version, action) of one kind, in the order of the log."""
        for number, actions in self.commits.items():
            if version is None or number <= version:
                for action in actions:
                    if kind in action:
                        yield number, action[kind]

    def metadata(self, version=None):
        said = [metadata for _, metadata in self.actions("metaData", version)]
        return said[-1] if said else self._checkpointed_metadata()

    def _checkpointed_metadata(self):
        """Of the oldest checkpoint, of a log whose first commits were cleaned up."""
        oldest = min((self.path / "_delta_log").glob("*.checkpoint.parquet"))
        rows = pq.ParquetFile(oldest).read(columns=["metaData"]).column("metaData").to_pylist()
        metadata = next(row for row in rows if row)
        return {**metadata, "configuration": dict(metadata["configuration"])}

    def schema(self, version=None):
        fields = json.loads(self.metadata(version)["schemaString"])["fields"]
        return [
            Field(
                field["name"],
                field["type"] if isinstance(field["type"], str) else field["type"]["type"],
                field["nullable"],
                field.get("metadata", {}).get("delta.columnMapping.physicalName", field["name"]),
            )
            for field in fields
        ]

    def types(self, version=None):
        return {field.name: field.type for field in self.schema(version)}

    def active(self, version=None):
        """{path: add action} of the files that make up a version."""
        files = {}
        for number, actions in self.commits.items():
            if version is not None and number > version:
                break
            for action in actions:
                if "remove" in action:
                    files.pop(action["remove"]["path"], None)
            for action in actions:
                if "add" in action:
                    files[action["add"]["path"]] = action["add"]
        return files

    def replacements(self):
        """Versions that replaced the content: they removed rows."""
        return sorted({number for number, remove in self.actions("remove") if remove["dataChange"]})

    def file(self, add):
        return self.path / unquote(add["path"])

    def rows_by_version(self, since=0):
        """{version: [(xid, lsn, sort_by), …]} of the rows that each commit from
        `since` on brought. Files that a later clean-up took away are left out."""
        rows = defaultdict(list)
        for number, add in self.actions("add"):
            file = self.file(add)
            if number >= since and add["dataChange"] and file.exists():
                physical = {field.name: field.physical for field in self.schema(number)}
                names = [physical[name] for name in ("_pg_xid", "_pg_lsn", "_sort_by")]
                table = pq.ParquetFile(file).read(columns=names)
                rows[number].extend(zip(*(table.column(name).to_pylist() for name in names), strict=True))
        return dict(rows)


def log_problems(log, since=0):
    """What is wrong with a history table's log, in words; empty if nothing.
    Files of versions before `since` must exist, but are not opened again."""
    problems = []
    versions = list(log.commits)
    if versions != list(range(len(versions))):
        problems.append(f"versions are not contiguous from 0: {versions}")
    identities = {meta["id"] for _, meta in log.actions("metaData")}
    if len(identities) != 1:
        problems.append(f"the table's id changed: {identities}")
    problems += _file_problems(log, since) + _transaction_problems(log, since)
    return problems


def _file_problems(log, since):
    problems = []
    new = {add["path"] for number, add in log.actions("add") if number >= since}
    for path, add in log.active().items():
        file = log.file(add)
        if not file.exists():
            problems.append(f"the log names {path}, which does not exist")
            continue
        if path not in new:
            continue
        if file.stat().st_size != add["size"]:
            problems.append(f"{path} has {file.stat().st_size} bytes, the log says {add['size']}")
        rows = pq.ParquetFile(file).metadata.num_rows
        told = json.loads(add.get("stats") or "{}").get("numRecords")
        if told != rows:
            problems.append(f"{path} has {rows} rows, its statistics say {told}")
    return problems


def _transaction_problems(log, since):
    problems = []
    home = {}
    replaced = set(log.replacements())
    for version, rows in sorted(log.rows_by_version(since).items()):
        if version in replaced:
            home.clear()
        # Rows of a snapshot have the ids of those who wrote them, but an LSN of their own.
        for xid, lsn in {(xid, lsn) for xid, lsn, _ in rows}:
            if home.setdefault((xid, lsn), version) != version:
                problems.append(f"transaction {xid} lies in versions {home[xid, lsn]} and {version}")
        problems += _progress_problems(log.commits[version], version, rows)
    return problems


def _progress_problems(actions, version, rows):
    """Each commit of rows says how far it goes, as three `txn` actions: the end
    LSN, the last `_sort_by`, and the checksum of the WAL record at that LSN."""
    said = {
        action["txn"]["appId"].split("/", 4)[-1].partition("/")[2]: action["txn"]["version"]
        for action in actions
        if action.get("txn", {}).get("appId", "").startswith(APP_ID)
    }
    last_lsn = max(lsn for _, lsn, _ in rows)
    last_sort_by = max(sort_by for _, _, sort_by in rows)
    if set(said) != {"", "sort_by", "crc"}:
        return [f"version {version} does not say its LSN, last _sort_by and checksum: {said}"]
    if said["sort_by"] != last_sort_by:
        return [f"version {version} says another last _sort_by than {last_sort_by}: {said}"]
    if said[""] < last_lsn:
        return [f"version {version} says an LSN before its last _pg_lsn {last_lsn}: {said}"]
    return []
