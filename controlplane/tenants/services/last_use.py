"""When keys were last used, to the minute: a key that nobody uses is one to revoke."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from django.db.models import Q
from django.utils import timezone

from controlplane.tenants.models import ApiKey

_TO_THE: Final = timedelta(minutes=1)
"""A key in constant use is written to once in this time, not at each call."""


def api_keys_touch(*, used: Mapping[str, datetime]) -> int:
    """Notes uses of keys by public id; of unknown ones nothing. How many rows were written.

    Each row in a statement of its own, outside of any transaction: who changes a key is not kept waiting.
    """
    keys = ApiKey.objects.filter(pk__in=used).values_list("pk", "last_used_at")
    now, written = timezone.now(), 0
    for public_id, before in keys:
        at = min(used[public_id], now)  # a gateway's clock may be ahead
        if before is None or before < at - _TO_THE:
            unseen = Q(last_used_at=None) | Q(last_used_at__lt=at)
            written += ApiKey.objects.filter(unseen, pk=public_id).update(last_used_at=at)
    return written
