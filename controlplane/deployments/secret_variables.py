"""Names of environment variables that hold secrets: those are kept nowhere in clear."""

from __future__ import annotations

import re
from typing import Final

from controlplane.errors import InvalidInputError

_SECRET: Final = re.compile(
    r"^(?!(.*_)?(max|min|num)_|GRAFTWORK_WORKER_FLAG_SPECULATION_TOKENS$).*token(?!iz)|secret|passw|passphrase|credential|keys?(?![a-z])",
    re.I,
)
"""Not MAX_TOTAL_TOKENS or TOKENIZERS_PARALLELISM."""


def secret_variable_check(name: str, *, field: str) -> None:
    """Raises InvalidInputError for a name that looks like a secret's."""
    if _SECRET.search(name):
        raise InvalidInputError(
            f"{name} looks like a secret, which is kept nowhere in clear: let the execution role read it",
            field=field,
        )
