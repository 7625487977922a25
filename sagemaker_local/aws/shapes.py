"""botocore's description of each service, and its constraints in Python's terms."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final

from botocore.session import Session

_CLASSES: Final = {
    r"[\p{L}\p{Z}\p{N}_": r"[\w \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000",
    r"[\p{Print}]": r"[ -~]",
    r"\p{Print}": r"[ -~]",
    r"\p{ASCII}": r"[\x00-\x7f]",
    r"\z": r"\Z",
    # Java writes what lies beyond the basic plane as pairs of surrogates.
    r"\uD800\uDC00-\uDBFF\uDFFF": r"\U00010000-\U0010FFFF",
}
"""Java's classes that the services' patterns use, and what they are to `re`."""


@cache
def service(name: str) -> Any:
    """botocore's ServiceModel."""
    return Session().get_service_model(name)


@cache
def pattern(text: str) -> re.Pattern[str]:
    """A shape's pattern for `fullmatch`: the services match whole values."""
    for theirs, ours in _CLASSES.items():
        text = text.replace(theirs, ours)
    return re.compile(text)
