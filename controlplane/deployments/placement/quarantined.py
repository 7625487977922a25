"""Keeps the control plane from loading adapters that gateways hold back (ADR 89)."""

from __future__ import annotations

import logging
import time
from typing import Any

from django.conf import settings
from redis.exceptions import RedisError

from contracts.errors import ContractError
from contracts.quarantine import QUARANTINES, Quarantine
from controlplane.deployments.provisioners.base import ProvisioningError
from controlplane.platform.task_signs import connection

logger = logging.getLogger(__name__)


def check_not_quarantined(engine_name: str) -> None:
    """Raise a transient ProvisioningError if the adapter is held back; without Redis it counts as free."""
    try:
        text: Any = connection(settings.GRAFTWORK.redis_url).hget(QUARANTINES, engine_name)
        found = None if text is None else Quarantine.from_json(text)
    except (RedisError, ContractError) as error:
        logger.warning("the quarantine of %s cannot be read: %s", engine_name, error)
        return
    if found is not None and found.until > time.time():
        raise ProvisioningError(
            "the adapter is held back, because engines died while they ran it: see Quarantines",
            transient=True,
        )
