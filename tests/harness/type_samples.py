"""Every type of DESIGN.md's type table with its edge values: (column name,
Postgres type, Delta type, SQL literals). NULL is added to each."""

DELTA_STRING = "string"


def _strings(*samples):
    return [(name, type_name, DELTA_STRING, literals) for name, type_name, literals in samples]


# Run once in the schema before the table is made.
MAKE_TYPES = """
    CREATE TYPE mood AS ENUM ('sad', 'it''s "fine", really', '');
    CREATE TYPE point3 AS (x int, "odd name" text, z timestamptz);
    CREATE TYPE floatrange AS RANGE (subtype = float8);
    CREATE DOMAIN price AS numeric(12,2) CHECK (VALUE >= 0);
    CREATE DOMAIN high_price AS price CHECK (VALUE < 1e9);
    CREATE DOMAIN words AS text[];
    CREATE DOMAIN some_text AS text;
    CREATE DOMAIN birthday AS date;
    CREATE DOMAIN small AS smallint;
    CREATE DOMAIN small_again AS small;
    CREATE DOMAIN feeling AS mood;
    CREATE DOMAIN place AS point3;
"""

NUMBERS = [
    ("c_bool", "boolean", "boolean", ["true", "false"]),
    ("c_int2", "smallint", "short", ["-32768", "0", "32767"]),
    ("c_int4", "integer", "integer", ["-2147483648", "2147483647"]),
    ("c_int8", "bigint", "long", ["-9223372036854775808", "9223372036854775807", "9007199254740993"]),
    ("c_float4", "real", "float", ["0.1", "'NaN'", "'Infinity'", "'-Infinity'", "'-0'", "1e-45", "3.4028235e38"]),
    ("c_float8", "double precision", "double",
     ["0.1", "'NaN'", "'Infinity'", "'-Infinity'", "'-0'", "5e-324", "1.7976931348623157e308", "1e15"]),
    ("n_10_2", "numeric(10,2)", "decimal(10,2)", ["0", "-0.01", "99999999.99", "-99999999.99", "'NaN'"]),
    ("n_38_10", "numeric(38,10)", "decimal(38,10)",
     ["9007199254740993.1234567891", "-9999999999999999999999999999.9999999999", "0.0000000001", "'NaN'"]),
    ("n_38", "numeric(38)", "decimal(38,0)", ["99999999999999999999999999999999999999", "-1", "'NaN'"]),
    ("n_38_38", "numeric(38,38)", "decimal(38,38)", ["0.00000000000000000000000000000000000001", "'NaN'"]),
    ("n_18_18", "numeric(18,18)", "decimal(18,18)", ["0.123456789012345678", "-0.999999999999999999"]),
    ("n_19_4", "numeric(19,4)", "decimal(19,4)", ["922337203685477.5808", "-922337203685477.5809"]),
    ("n_1", "numeric(1)", "decimal(1,0)", ["9", "-9", "0"]),
    ("n_3_neg2", "numeric(3,-2)", "decimal(5,0)", ["99900", "-12345", "40", "'NaN'"]),
    ("n_3_5", "numeric(3,5)", "decimal(5,5)", ["0.00999", "-0.00001", "'NaN'"]),
    ("n_30_40", "numeric(30,40)", "string", ["1e-12", "-0.00000000000000000000000000000000000001", "'NaN'"]),
    ("n_39_2", "numeric(39,2)", "string", ["1234567890123456789012345678901234567.89", "0", "'NaN'"]),
    ("n_free", "numeric", "string",
     ["0", "1.50", "-1.500", "1e400", "-1e-400", "12345678901234567890123456789012345678901234567890.5",
      "'NaN'", "'Infinity'", "'-Infinity'"]),
    ("d_price", "price", "decimal(12,2)", ["0", "9999999999.99"]),
    ("d_high_price", "high_price", "decimal(12,2)", ["999999999.99"]),
    ("d_small", "small_again", "short", ["7"]),
]  # fmt: skip

TIMES = [
    ("c_date", "date", "date",
     ["'2024-02-29'", "'infinity'", "'-infinity'", "'1970-01-01'", "'0001-01-01'", "'9999-12-31'"]),
    ("far_date", "date", "date",
     ["'4713-01-01 BC'", "'0044-03-15 BC'", "'12021-05-04'", "'5874897-12-31'", "'2024-01-01'"]),
    ("c_timestamp", "timestamp", "timestamp_ntz",
     ["'2024-02-29 23:59:59.999999'", "'infinity'", "'-infinity'", "'1969-12-31 23:59:59.999999'", "'1900-01-01'"]),
    ("far_timestamp", "timestamp", "timestamp_ntz",
     ["'4713-01-01 00:00:00 BC'", "'0044-03-15 12:00:00.000001 BC'", "'12021-05-04 01:02:03'",
      "'294247-01-10 04:00:54.775807'", "'294247-01-10 04:00:54.775808'", "'294276-12-31 23:59:59.999999'"]),
    ("c_timestamptz", "timestamptz", "timestamp",
     ["'2024-02-29 23:59:59.999999+05:30'", "'infinity'", "'-infinity'", "'2024-06-01 00:00 America/New_York'"]),
    ("far_timestamptz", "timestamptz", "timestamp",
     ["'4713-01-01 00:00:00+00 BC'", "'12021-05-04 01:02:03-08'", "'294247-01-10 04:00:54.775807+00'",
      "'294247-01-10 04:00:54.775808+00'"]),
    ("ts_0", "timestamp(0)", "timestamp_ntz", ["'2024-01-01 00:00:00.6'"]),
    ("d_birthday", "birthday", "date", ["'1999-12-31'", "'infinity'"]),
]  # fmt: skip

TEXTS = _strings(
    ("c_text", "text",
     ["''", "' '", "'ünï ☃ 🐘 e\u0301'", r"E'tab\t nl\n cr\r \\ \x01'", "'NULL'", "repeat('long ', 2000)"]),
    ("c_varchar", "varchar(10)", ["''", "'ten chars!'"]),
    ("c_char", "char(6)", ["''", "'ab'", "'  ab'", "'☃☃'"]),
    ("c_char1", '"char"', ["'x'", "''"]),
    ("c_name", "name", ["'a name'", "''"]),
    ("c_json", "json", ["""'{"b":  1, "a": [1,2 ], "b": null}'""", "'null'", "'\"\\u00fc\"'"]),
    ("c_jsonb", "jsonb", ["""'{"b":  1.50, "a": [1,2 ], "é": "☃\\n"}'""", "'null'", "'1e2'"]),
    ("c_enum", "mood", ["'sad'", "'it''s \"fine\", really'", "''"]),
    ("c_uuid", "uuid", ["'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'"]),
    ("d_text", "some_text", ["''", "'x'"]),
    ("d_feeling", "feeling", ["'sad'"]),
)  # fmt: skip

BINARY = [("c_bytea", "bytea", "binary", [r"'\x'", r"'\x00ff5c27'", r"'\xdeadbeef'"])]

OTHERS = _strings(
    ("c_time", "time", ["'24:00'", "'00:00:00.000001'", "'23:59:59.999999'"]),
    ("c_timetz", "timetz", ["'12:00+05:30'", "'24:00:00-15:59'"]),
    ("c_interval", "interval",
     ["'1 year 2 mons 3 days 04:05:06.000007'", "'-1 mon +2 days -03:00'", "'0'", "'infinity'", "'-infinity'"]),
    ("c_inet", "inet", ["'192.168.0.1/24'", "'10.0.0.1'", "'2001:db8::1'"]),
    ("c_cidr", "cidr", ["'10.0.0.0/8'"]),
    ("c_mac", "macaddr", ["'08:00:2b:01:02:03'"]),
    ("c_mac8", "macaddr8", ["'08:00:2b:01:02:03:04:05'"]),
    ("c_money", "money", ["'-1234567.89'", "'0'"]),
    ("c_bit", "bit(5)", ["B'10110'"]),
    ("c_varbit", "varbit", ["B''", "B'101'"]),
    ("c_xml", "xml", ["'<a b=\"ü\">x</a>'", "'just text'", "''"]),
    ("c_tsvector", "tsvector", ["'a:1A fat:2B,4C'", "''"]),
    ("c_tsquery", "tsquery", ["'fat & (rat | !cat)'"]),
    ("c_regclass", "regclass", ["'own'", "'pg_class'", "0"]),
    ("c_regtype", "regtype", ["'mood'", "'int4'", "'timestamptz'"]),
    ("c_regproc", "regprocedure", ["'abs(int)'"]),
    ("c_regnamespace", "regnamespace", ["'pg_catalog'"]),
    ("c_lsn", "pg_lsn", ["'16/B374D848'", "'0/0'"]),
    ("c_snapshot", "pg_snapshot", ["'10:20:10,14,15'"]),
    ("c_oid", "oid", ["4294967295", "0"]),
    ("c_xid", "xid", ["'4294967295'"]),
    ("c_xid8", "xid8", ["'18446744073709551615'"]),
    ("c_tid", "tid", ["'(4,2)'"]),
    ("c_jsonpath", "jsonpath", ["'$.a[*] ? (@ > 1)'"]),
    ("c_point", "point", ["'(0.1,-1e300)'"]),
    ("c_polygon", "polygon", ["'((0,0),(1,1.5),(2,0))'"]),
    ("c_circle", "circle", ["'<(1,2),0.3>'"]),
    ("c_range", "int4range", ["'[1,3]'", "'empty'", "'(,)'"]),
    ("c_tstzrange", "tstzrange", ["'[2024-01-01 00:00+05:30,infinity]'", "'empty'"]),
    ("c_floatrange", "floatrange", ["'[0.1,0.3)'"]),
    ("c_multirange", "datemultirange", ["'{[2024-01-01,2024-02-01), [2025-01-01,)}'", "'{}'"]),
    ("c_composite", "point3",
     ["ROW(1, 'a \"b\", c', '2024-01-01 00:00+05:30')", "ROW(NULL, NULL, NULL)", "ROW(NULL, '', NULL)"]),
    ("d_place", "place", ["ROW(1, '', NULL)"]),
    ("a_int", "int[]", ["'{}'", "'{1,NULL,-3}'", "'[2:3]={1,2}'", "'{{1,2},{3,4}}'"]),
    ("a_text", "text[]", ["""'{"a b","",NULL,"NULL","q\\"q","☃"}'"""]),
    ("a_float", "float8[]", ["'{0.1,NaN,-Infinity,1e-5}'"]),
    ("a_timestamptz", "timestamptz[]", ["'{2024-01-01 00:00+05:30,infinity}'"]),
    ("a_date", "date[]", ["'{2024-12-31,-infinity}'"]),
    ("a_bytea", "bytea[]", [r"""'{"\\x00ff",""}'"""]),
    ("a_interval", "interval[]", ["'{1 year 2 mons,-1 day}'"]),
    ("a_numeric", "numeric(10,2)[]", ["'{1.50,NaN}'"]),
    ("a_enum", "mood[]", ["'{sad}'"]),
    ("a_composite", "point3[]", ["ARRAY[ROW(1, 'x', '2024-01-01 00:00+05:30')]::point3[]"]),
    ("a_domain", "price[]", ["'{1.5}'"]),
    ("d_words", "words", ["'{a,\"b c\"}'"]),
)  # fmt: skip

# From the extensions that this server has: (extension, samples).
CONTRIB = {
    "hstore": _strings(("x_hstore", "public.hstore", ["""'a=>1, "b c"=>NULL, ""=>"x\\"y"'""", "''"])),
    "citext": _strings(("x_citext", "public.citext", ["'MiXed'"])),
    "ltree": _strings(("x_ltree", "public.ltree", ["'top.middle.leaf'"])),
    "cube": _strings(("x_cube", "public.cube", ["'(1,2),(3,4.5)'"])),
    "isn": _strings(("x_isbn", "public.isbn13", ["'978-0-393-04002-9'"])),
    "vector": _strings(("x_vector", "public.vector(3)", ["'[1,2.5,-3e-5]'"])),
}

SAMPLES = NUMBERS + TIMES + TEXTS + BINARY + OTHERS
