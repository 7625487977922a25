"""Usage reports as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any, Final

import orjson
from rest_framework.renderers import BaseRenderer, JSONRenderer

_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


class UsageJsonRenderer(JSONRenderer):
    """JSON by orjson: a month by day and adapter has 6,000 rows."""

    def render(
        self,
        data: Any,
        accepted_media_type: str | None = None,
        renderer_context: Mapping[str, Any] | None = None,
    ) -> bytes:
        # Texts of errors may be translated when they are written.
        return b"" if data is None else orjson.dumps(data, default=str)


class UsageCsvRenderer(BaseRenderer):
    """One line a row under a head line; an error as one line under `code,detail,attr`."""

    media_type = "text/csv"
    format = "csv"
    charset = "utf-8"

    def render(
        self,
        data: Any,
        accepted_media_type: str | None = None,
        renderer_context: Mapping[str, Any] | None = None,
    ) -> bytes:
        text = io.StringIO()
        writer = csv.writer(text)
        if "rows" in data:
            names = data["group_by"]
            sums = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")
            writer.writerow([*names, *sums, "price", "currency", "unpriced"])
            for row in data["rows"]:
                groups = [cell(row["group"][name]) for name in names]
                price = "" if row["price"] is None else row["price"]
                flag = "true" if row["unpriced"] else "false"
                writer.writerow([*groups, *(row[name] for name in sums), price, data["currency"], flag])
        else:
            writer.writerow(["code", "detail", "attr"])
            for error in data["errors"]:
                writer.writerow([error["code"], cell(error["detail"]), error["attr"]])
        return text.getvalue().encode()


def cell(text: str) -> str:
    """Text that a spreadsheet does not take for a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text
