"""Mergeable latency histograms with logarithmic buckets, and their percentiles.

Bucket `b` holds the durations from `SMALLEST_MS * exp(STEP * b)` up to the next bucket's. A percentile is the
value in the middle of its bucket, so its relative distance from the exact nearest-rank percentile is at most
ERROR: the bound of DDSketch (Masson et al., 2019).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from django.db import connection
from django.db.models import F, IntegerField
from django.db.models.expressions import Combinable
from django.db.models.functions import Cast, Floor, Greatest, Ln

SMALLEST_MS: Final = 0.1
"""Shorter durations count as this one."""
STEP: Final = 0.04
"""Natural logarithm of the ratio of two buckets' bounds."""
ERROR: Final = math.tanh(STEP / 2)
"""Largest relative error of a percentile: 2 percent."""


def bucket_of(milliseconds: float) -> int:
    """Return the bucket of a duration."""
    return math.floor(math.log(max(milliseconds, SMALLEST_MS) / SMALLEST_MS) / STEP)


def bucket_sql(column: str) -> str:
    """Return the SQL of `bucket_of`, for the database in use."""
    larger = "GREATEST" if connection.vendor == "postgresql" else "MAX"
    return f"CAST(FLOOR(LN({larger}({column}, {SMALLEST_MS}) / {SMALLEST_MS}) / {STEP}) AS integer)"


def bucket_expression(column: str) -> Combinable:
    """Return `bucket_of` as an expression of the ORM."""
    floor = Floor(Ln(Greatest(F(column), SMALLEST_MS) / SMALLEST_MS) / STEP)
    return Cast(floor, IntegerField())


def bucket_ms(bucket: int) -> float:
    """Return the duration that stands for all durations of a bucket."""
    lower = SMALLEST_MS * math.exp(STEP * bucket)
    upper = SMALLEST_MS * math.exp(STEP * (bucket + 1))
    return 2 * lower * upper / (lower + upper)


def percentile_ms(counts: Mapping[int, int], share: float) -> float | None:
    """Return the nearest-rank percentile of the histogram `counts` (bucket -> number); None if it is empty.

    Args:
        share: 0.95 for the 95th percentile.
    """
    rank = math.ceil(share * sum(counts.values()))
    reached = 0
    for bucket in sorted(counts):
        reached += counts[bucket]
        if reached >= rank and reached:
            return round(bucket_ms(bucket), 3)
    return None
