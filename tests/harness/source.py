"""A table's rows as Postgres has them, in the same form as the readers' (see
values.py): what a history must replay to.

The rules for which type becomes what are DESIGN.md's type table, written here
a second time on purpose and in another way: as SQL."""

from . import values

# "As Postgres prints it, under fixed settings."
FIXED = {
    "datestyle": "ISO, YMD",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "xmlbinary": "base64",
    "lc_monetary": "C",
    "quote_all_identifiers": "off",
    "search_path": "pg_catalog",
}

# The last microsecond since 1970 that fits 64 bits.
LAST_MICROS = 2**63 - 1

PLAIN = {"bool", "int2", "int4", "int8", "bytea"}


def decimal_of(typmod):
    """(precision, scale) of the DECIMAL for a numeric's modifier, else None."""
    if typmod < 4:
        return None
    precision = ((typmod - 4) >> 16) & 0xFFFF
    scale = (((typmod - 4) & 0x7FF) ^ 1024) - 1024
    if scale < 0:
        precision, scale = precision - scale, 0
    elif scale > precision:
        precision = scale
    return (precision, scale) if precision <= 38 else None


def _base_type(conn, oid, typmod):
    """The type below all domains, with the modifier that counts."""
    while True:
        name, base, base_typmod = conn.execute(
            "SELECT typname, typbasetype, typtypmod FROM pg_type WHERE oid = %s", [oid]
        ).fetchone()
        if base == 0:
            return name, typmod
        oid, typmod = base, base_typmod


def columns(conn, table):
    """[(name, base type, modifier)] in table order."""
    found = conn.execute(
        "SELECT attname, atttypid, atttypmod FROM pg_attribute "
        "WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        [table],
    ).fetchall()
    return [(name, *_base_type(conn, oid, typmod)) for name, oid, typmod in found]


def _expression(name, type_name, typmod):
    """(SQL expression, function to the common form) for one column."""
    column = '"' + name.replace('"', '""').replace("%", "%%") + '"'
    if type_name in PLAIN:
        return column, None
    if type_name in ("float4", "float8"):
        return f"{column}::float8", values.number
    if type_name == "numeric" and decimal_of(typmod):
        # NaN and the infinities are the only numerics that are not finite.
        return f"CASE WHEN {column} NOT IN ('NaN', 'Infinity', '-Infinity') THEN {column} END", None
    if type_name == "date":
        return f"CASE WHEN isfinite({column}) THEN {column} - date '1970-01-01' END", values.date
    if type_name in ("timestamp", "timestamptz"):
        # Whole seconds and the rest apart: near the end of 64 bits the epoch of
        # a timestamp is rounded.
        seconds = f"extract(epoch FROM date_trunc('second', {column}))"
        rest = f"mod(extract(microseconds FROM {column}), 1000000)"
        return f"CASE WHEN isfinite({column}) THEN {seconds} * 1000000 + {rest} END", _timestamp
    # format() prints by the output function; num_nulls(), unlike IS NULL, does
    # not look into composite values.
    return f"CASE WHEN num_nulls({column}) = 0 THEN format('%%s', {column}) END", None


def _timestamp(micros):
    if micros is None or micros > LAST_MICROS:
        return None
    assert micros == int(micros)
    return values.timestamp(int(micros))


def table_rows(cluster, table, dbname="postgres", without=(), order_by=None):
    """The rows of `table` (schema-qualified) as tuples."""
    with cluster.connect(dbname, **FIXED) as conn:
        expressions = [_expression(*column) for column in columns(conn, table) if column[0] not in without]
        wanted = ", ".join(sql for sql, _ in expressions)
        ordered = f" ORDER BY {order_by}" if order_by else ""
        place = table.replace("%", "%%")
        rows = conn.execute(f"SELECT {wanted} FROM {place}{ordered}", []).fetchall()
    forms = [form for _, form in expressions]
    return [tuple(form(value) if form else value for value, form in zip(row, forms, strict=True)) for row in rows]
