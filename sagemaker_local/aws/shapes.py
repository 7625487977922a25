"""botocore's description of each service, with its constraints translated to Python."""

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
    # Java writes characters beyond the basic plane as pairs of surrogates.
    r"\uD800\uDC00-\uDBFF\uDFFF": r"\U00010000-\U0010FFFF",
}
"""Java's character classes in the services' patterns, and their equivalents in `re`."""


@cache
def service(name: str) -> Any:
    """Return botocore's ServiceModel."""
    return Session().get_service_model(name)


@cache
def pattern(text: str) -> re.Pattern[str]:
    """Compile a shape's pattern, for `fullmatch`: the services match whole values."""
    for theirs, ours in _CLASSES.items():
        text = text.replace(theirs, ours)
    return re.compile(text)
