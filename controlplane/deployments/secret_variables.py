"""Recognize environment variables that hold secrets, which are never stored in clear."""

from __future__ import annotations

import re
from typing import Final

from controlplane.errors import InvalidInputError

_SECRET: Final = re.compile(
    r"^(?!(.*_)?(max|min|num)_|GRAFTWORK_WORKER_FLAG_SPECULATION_TOKENS$).*token(?!iz)|secret|passw|passphrase|credential|keys?(?![a-z])",
    re.I,
)
"""Does not match MAX_TOTAL_TOKENS or TOKENIZERS_PARALLELISM."""


def secret_variable_check(name: str, *, field: str) -> None:
    """Raise InvalidInputError if the name looks like that of a secret."""
    if _SECRET.search(name):
        raise InvalidInputError(
            f"{name} looks like a secret, which is kept nowhere in clear: let the execution role read it",
            field=field,
        )
