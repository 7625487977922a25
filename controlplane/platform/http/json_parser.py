"""JSON bodies of REST calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any

from rest_framework.exceptions import ParseError
from rest_framework.parsers import JSONParser

from contracts.strict_json import find_fault


class StrictJSONParser(JSONParser):
    """Refuses what PostgreSQL's jsonb refuses: infinite numbers (1e999), NUL characters, lone surrogates.

    REST framework's own strictness covers NaN and Infinity as words alone.
    """

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        try:
            value = super().parse(stream, media_type, parser_context)
        except RecursionError:
            raise ParseError("the body is nested too deeply") from None
        if (fault := find_fault(value)) is not None:
            raise ParseError(f"the body {fault}")
        return value
