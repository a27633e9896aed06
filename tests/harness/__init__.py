"""What the whole-cluster tests stand on: throw-away clusters, independent
readers of the Delta tables, and the checker that replays a history.

Nothing here knows how wal2delta works inside: it uses the SQL interface, the
files of the Delta tables and the server's own views."""
