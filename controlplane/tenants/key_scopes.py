"""Validates and normalizes a key's restrictions to models, endpoints and networks."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from contracts.addresses import parse_network
from contracts.keys import ENDPOINTS
from controlplane.errors import InvalidInputError

MOST: Final = 64
"""Most names, endpoints or networks of one key."""
_MODEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}(@[A-Za-z0-9][A-Za-z0-9._-]{0,62})?")


def check_models(values: Sequence[str] | None) -> list[str] | None:
    """Check names of models, which need not exist yet. Raises InvalidInputError."""

    def check(value: str) -> str:
        if _MODEL.fullmatch(value) is None:
            raise ValueError(
                f"{value[:64]!r} is not a model name: use base, adapter, adapter@alias or adapter@v1"
            )
        return value

    return _checked(values, check, field="allowed_models")


def check_endpoints(values: Sequence[str] | None) -> list[str] | None:
    """Check endpoints, as paths below `/v1/`. Raises InvalidInputError."""

    def check(value: str) -> str:
        if value not in ENDPOINTS:
            raise ValueError(f"{value[:64]!r} must be one of {', '.join(ENDPOINTS)}")
        return value

    return _checked(values, check, field="allowed_endpoints")


def check_networks(values: Sequence[str] | None) -> list[str] | None:
    """Convert CIDRs and addresses to CIDRs. Raises InvalidInputError."""
    return _checked(values, lambda value: str(parse_network(value)), field="allowed_networks")


def _checked(values: Sequence[str] | None, check: Callable[[str], str], *, field: str) -> list[str] | None:
    if values is None:
        return None
    if not 0 < len(values) <= MOST:
        raise InvalidInputError(
            f"{field} must have 1 to {MOST} values, or be null for no restriction", field=field
        )
    try:
        return list(dict.fromkeys(check(value.strip()) for value in values))
    except ValueError as error:
        raise InvalidInputError(str(error), field=field) from None
