"""The replay checker itself: it accepts a right history and finds each fault."""

import datetime
import json

import pytest
from harness import values
from harness.deltalog import DeltaLog, log_problems
from harness.history import Broken, Row, check, history_problems

NOON = datetime.datetime(2026, 1, 1, 12)


def row(change, value, lsn, sort_by, xid=700):
    return Row(change, (value,), lsn, xid, NOON, sort_by)


GOOD = [
    row("insert", "a", 100, 100),
    row("insert", "b", 100, 101),
    row("update_preimage", "a", 200, 200, 701),
    row("update_postimage", "c", 200, 201, 701),
    row("delete", "b", 201, 202, 702),
    row("insert", "c", 300, 300, 703),
]
TABLE = [("c",), ("c",)]


def changed(index, **fields):
    rows = list(GOOD)
    rows[index] = rows[index]._replace(**fields)
    return rows


def test_a_right_history_has_no_problems():
    assert history_problems(GOOD, TABLE) == []
    assert history_problems(list(reversed(GOOD)), TABLE) == []
    assert history_problems([], []) == []


FAULTS = {
    "row missing": (GOOD[:-1], "in the table, not in the replay"),
    "row twice": (GOOD + [row("insert", "c", 300, 301)], "in the replay, not in the table (1×)"),
    "wrong value": (changed(5, values=("x",)), "in the replay, not in the table"),
    "delete of nothing": (changed(4, values=("z",)), "delete of a row that is not live"),
    "preimage of nothing": (changed(2, values=("z",)), "update_preimage of a row that is not live"),
    "order key repeats": (changed(1, sort_by=100), "not strictly increasing"),
    "order key jumps": (changed(1, sort_by=150), "not max(previous + 1, _pg_lsn)"),
    "order key below its LSN": (changed(5, sort_by=299), "not max(previous + 1, _pg_lsn)"),
    "first order key": (changed(0, sort_by=99), "first _sort_by is not its LSN"),
    "LSN goes down": (changed(4, lsn=150), "_pg_lsn goes down"),
    "no postimage": (GOOD[:3] + GOOD[4:], "a preimage without its postimage"),
    "no postimage at the end": (GOOD[:3], "a preimage without its postimage"),
    "no preimage": (GOOD[:2] + GOOD[3:], "a postimage without its preimage"),
    "torn pair": (changed(3, xid=999), "of different transactions"),
    "unknown change": (changed(5, change="upsert"), "unknown change type"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_of_a_history_is_found(fault):
    rows, told = FAULTS[fault]
    assert any(told in problem for problem in history_problems(rows, TABLE)), history_problems(rows, TABLE)


def test_events_in_the_wrong_order_are_found():
    swapped = [
        row("insert", "a", 100, 100),
        row("delete", "b", 200, 200),
        row("insert", "b", 300, 300),
    ]
    assert [p for p in history_problems(swapped, [("a",)]) if "not live" in p]


def test_nan_equals_itself_in_rows():
    one = Row("insert", (values.number(float("nan")),), 1, 1, NOON, 1)
    assert history_problems([one], [(values.number(float("-nan")),)]) == []


# --- the log


def txns(sort_by, lsn):
    return [
        {"txn": {"appId": "wal2delta/1/2/3/1", "version": lsn}},
        {"txn": {"appId": "wal2delta/1/2/3/1/sort_by", "version": sort_by}},
        {"txn": {"appId": "wal2delta/1/2/3/1/crc", "version": 1}},
    ]


@pytest.fixture
def history(tmp_path):
    """A history of two commits, written with pyarrow and by hand."""
    return HandMade(tmp_path)


class HandMade:
    def __init__(self, path):
        self.path = path
        (path / "_delta_log").mkdir()
        self.commit(0, GOOD[:2], [{"metaData": self.metadata()}] + txns(101, 110))
        self.commit(1, GOOD[2:], txns(300, 310))

    def metadata(self):
        names = [("v", "string"), ("_pg_change_type", "string"), ("_pg_lsn", "long"), ("_pg_xid", "integer")]
        names += [("_timestamp", "timestamp_ntz"), ("_sort_by", "long")]
        fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in names]
        return {"id": "one", "schemaString": json.dumps({"type": "struct", "fields": fields})}

    def commit(self, version, rows, actions, **add):
        import pyarrow as pa
        import pyarrow.parquet as pq

        file = self.path / f"{version}.parquet"
        columns = {
            "v": [r.values[0] for r in rows],
            "_pg_change_type": [r.change for r in rows],
            "_pg_lsn": [r.lsn for r in rows],
            "_pg_xid": [r.xid for r in rows],
            "_timestamp": [r.time for r in rows],
            "_sort_by": [r.sort_by for r in rows],
        }
        pq.write_table(pa.table(columns), file)
        said = {"path": file.name, "size": file.stat().st_size, "dataChange": True}
        said["stats"] = json.dumps({"numRecords": len(rows)})
        self.write(version, actions + [{"add": {**said, **add}}])

    def write(self, version, actions):
        lines = "\n".join(json.dumps(action) for action in actions)
        (self.path / "_delta_log" / f"{version:020}.json").write_text(lines + "\n")

    def problems(self):
        return log_problems(DeltaLog(self.path))


def test_a_right_log_has_no_problems(history):
    assert history.problems() == []
    check(history.path, GOOD, TABLE)
    with pytest.raises(Broken, match="in the table, not in the replay"):
        check(history.path, GOOD, TABLE + [("d",)])


def test_rows_are_assigned_to_their_versions(history):
    assert DeltaLog(history.path).rows_by_version()[0] == [(700, 100, 100), (700, 100, 101)]


def test_a_transaction_in_two_versions_is_found(history):
    history.commit(2, [row("insert", "d", 300, 301, 703)], txns(301, 310))
    assert "transaction 703 lies in versions 1 and 2" in history.problems()


def test_a_replacement_may_bring_the_same_transactions(history):
    removes = [{"remove": {"path": f"{n}.parquet", "dataChange": True}} for n in (0, 1)]
    history.commit(2, [row("insert", "c", 300, 301, 703)], txns(301, 310) + removes)
    assert history.problems() == []
    assert DeltaLog(history.path).replacements() == [2]
    assert list(DeltaLog(history.path).active()) == ["2.parquet"]
    assert len(DeltaLog(history.path).active(version=1)) == 2


def test_a_missing_file_is_found(history):
    (history.path / "1.parquet").unlink()
    assert "the log names 1.parquet, which does not exist" in history.problems()


def test_wrong_statistics_are_found(history):
    history.commit(1, GOOD[2:], txns(300, 310), stats=json.dumps({"numRecords": 3}))
    assert any("has 4 rows, its statistics say 3" in p for p in history.problems())


def test_a_hole_in_the_versions_is_found(history):
    history.commit(3, [row("insert", "d", 400, 400, 704)], txns(400, 410))
    assert any("not contiguous" in p for p in history.problems())


def test_a_changed_table_id_is_found(history):
    history.write(2, [{"metaData": {**history.metadata(), "id": "two"}}])
    assert any("id changed" in p for p in history.problems())


@pytest.mark.parametrize(
    "actions, told",
    [
        ([], "does not say its LSN"),
        (txns(400, 410)[:1], "does not say its LSN"),
        (txns(399, 410), "says another last _sort_by than 400"),
        (txns(400, 300), "says an LSN before its last _pg_lsn 400"),
    ],
)
def test_missing_progress_is_found(history, actions, told):
    history.commit(2, [row("insert", "d", 400, 400, 704)], actions)
    assert any(told in p for p in history.problems()), history.problems()
