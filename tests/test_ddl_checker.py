"""The checks that the tests of DDL stand on find what they are there to find."""

import json

import pytest
from harness.ddl import follow
from harness.deltalog import DeltaLog


def field(name, type="integer", nullable=True, physical=None):
    metadata = {"delta.columnMapping.physicalName": physical} if physical else {}
    return {"name": name, "type": type, "nullable": nullable, "metadata": metadata}


def metadata(*fields, id="one"):
    return {"metaData": {"id": id, "schemaString": json.dumps({"type": "struct", "fields": list(fields)})}}


def log(tmp_path, *versions):
    """A Delta log of these versions, each a list of actions."""
    folder = tmp_path / "_delta_log"
    folder.mkdir()
    for number, actions in enumerate(versions):
        (folder / f"{number:020}.json").write_text("\n".join(json.dumps(action) for action in actions))
    return DeltaLog(tmp_path)


A, B = field("a"), field("b", "string")


@pytest.mark.parametrize(
    "later",
    [
        [],
        [{"add": {"path": "x", "dataChange": True}}],
        [{"remove": {"path": "x", "dataChange": False}}],
        [metadata(A, B)],
        [metadata(A, B, field("c"))],
        [metadata(A, field("between"), B)],
        [metadata(field("a", nullable=True), B)],
        [metadata(field("a", "long"), B)],
        [metadata(field("renamed", physical="a"), B)],
    ],
)
def test_what_a_streaming_reader_follows(tmp_path, later):
    first = metadata(field("a", nullable=False), B)
    assert follow(log(tmp_path, [first], later)) == []


@pytest.mark.parametrize(
    "later, says",
    [
        ([{"remove": {"path": "x", "dataChange": True}}], "removes x"),
        ([metadata(A, B, id="other")], "another id"),
        ([metadata(B)], "has lost"),
        ([metadata(field("renamed"), B)], "has lost"),
        ([metadata(field("a", "string"), B)], "makes"),
        ([metadata(field("a", "short"), B)], "makes"),
        ([metadata(A, field("b", "string", nullable=False))], "NOT NULL"),
        ([metadata(A, B, field("c", nullable=False))], "not nullable"),
    ],
)
def test_what_a_streaming_reader_fails_on(tmp_path, later, says):
    problems = follow(log(tmp_path, [metadata(A, B)], later))
    assert problems and says in problems[0], problems
