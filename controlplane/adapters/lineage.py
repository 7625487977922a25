"""Lineage of a version, stated by its tenant at registration or later."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from django.core.exceptions import ValidationError
from django.core.validators import URLValidator

from controlplane.errors import InvalidInputError

FIELDS: Final = {"dataset": 500, "run_url": 500, "base_sha256": 64, "notes": 10_000}
"""Field of AdapterVersion -> longest text."""
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_is_url: Final = URLValidator(schemes=["http", "https"])


def lineage_check(values: Mapping[str, str]) -> dict[str, str]:
    """A copy of `values`, by field; "" is unknown.

    Raises:
        InvalidInputError: a text is too long, the run's URL none of http or https, the digest no SHA-256.
    """
    for name, text in values.items():
        if len(text) > FIELDS[name]:
            raise InvalidInputError(f"at most {FIELDS[name]} characters, got {len(text)}", field=name)
    if url := values.get("run_url"):
        try:
            _is_url(url)
        except ValidationError as error:
            text = (
                "write the training run's address with http:// or https:// and its host in full:"
                " a name with a dot, localhost or an IP address"
            )
            raise InvalidInputError(text, field="run_url") from error
    if (digest := values.get("base_sha256")) and _SHA256.fullmatch(digest) is None:
        raise InvalidInputError("a digest is 64 lower-case hexadecimal digits", field="base_sha256")
    return dict(values)
