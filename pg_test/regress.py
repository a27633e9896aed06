"""Regression tests of the SQL interface, in the form of pg_regress: each
sql/<name>.sql runs through psql in a database of its own, and what it prints
must be expected/<name>.out, to the letter.

    pg_test/run                 all of them
    pg_test/run errors options  these
    pg_test/run --accept ...    takes over what they print now: read the diff

WAL2DELTA_PG_CONFIG names the pg_config of a PostgreSQL 17 with wal2delta."""

import difflib
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

from harness.cluster import Clusters, pg_config  # noqa: E402


def printed(cluster, name):
    """What psql prints, without what differs from run to run."""
    database = f"regress_{name}"
    cluster.sql(f"CREATE DATABASE {database}")
    lake = cluster.folder_for(name)
    result = subprocess.run(
        [
            Path(pg_config("bindir")) / "psql", "--no-psqlrc", "--echo-all", "--quiet",
            f"--set=lake={lake}", f"--file={HERE / 'sql' / name}.sql", cluster.dsn(database),
        ],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300,
    )  # fmt: skip
    where = f"psql:{HERE / 'sql' / name}.sql:"
    lines = []
    for line in result.stdout.replace(str(lake), "<lake>").splitlines():
        if line.startswith(where):
            line = line[len(where) :].partition(": ")[2]
        lines.append(line + "\n")
    return lines


def passes(cluster, name, accept):
    found = printed(cluster, name)
    expected = HERE / "expected" / f"{name}.out"
    if accept:
        expected.write_text("".join(found))
    wanted = expected.read_text().splitlines(keepends=True) if expected.exists() else []
    difference = list(difflib.unified_diff(wanted, found, f"expected/{name}.out", "printed"))
    sys.stdout.writelines(difference)
    print(f"{'FAILED' if difference else 'ok    '} {name}", flush=True)
    return not difference


def main(arguments):
    accept = "--accept" in arguments
    names = [name for name in arguments if not name.startswith("--")]
    names = names or sorted(path.stem for path in (HERE / "sql").glob("*.sql"))
    clusters = Clusters()
    try:
        cluster = clusters.make(extension=False)
        results = [passes(cluster, name, accept) for name in names]
        crashes = cluster.crashes()
        if crashes or not all(results):
            print(cluster.log_tail())
    finally:
        clusters.close()
    failed = results.count(False) + bool(crashes)
    print(f"{results.count(True)} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
