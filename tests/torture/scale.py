"""How much of everything, by how long the test runs."""

from dataclasses import dataclass

# From this many seconds on a run is a long one.
LONG = 600


@dataclass(frozen=True)
class Scale:
    # Seconds of faults between two calms.
    storm: float
    # Seconds between two faults, on average, where the second does not come at once.
    pause: float
    # Rows of a large transaction, and the seconds between two of them.
    bulk_rows: int
    bulk_rest: tuple[float, float]
    # Characters of the largest value, and the seconds between two large ones.
    wide_most: int
    wide_rest: tuple[float, float]


SHORT_RUN = Scale(
    storm=20, pause=0.6, bulk_rows=100_000, bulk_rest=(8, 16), wide_most=5_000_000, wide_rest=(1, 4)
)  # fmt: skip
LONG_RUN = Scale(
    storm=60, pause=1.5, bulk_rows=1_000_000, bulk_rest=(60, 180), wide_most=50_000_000, wide_rest=(4, 20)
)  # fmt: skip


def scale_of(seconds):
    return LONG_RUN if seconds >= LONG else SHORT_RUN
