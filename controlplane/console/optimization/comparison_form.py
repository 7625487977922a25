"""The form of a comparison: a few fields as arms and settings; the REST API has all of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.core.files.uploadedfile import UploadedFile
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from contracts import strict_json
from controlplane.errors import InvalidInputError
from controlplane.optimization.instance_rates import ON_DEMAND, PLANS
from controlplane.optimization.traces import rows_of_file

TRACE: Final = "trace"
"""As `prompts`: generated prompts with the lengths of the bundled trace."""
_FIELDS: Final = (
    "base_model",
    "name",
    "prompts",
    "texts",
    "concurrency",
    "speeds",
    "max_tokens",
    "hour",
    "instance_type",
    "plan",
    "currency",
    "input",
    "output",
    "adapters",
    "scorer",
    "right",
)
SCORERS: Final = (
    ("exact", gettext_lazy("Exact match with expected")),
    ("regex", gettext_lazy("Regular expression match")),
    ("json_schema", gettext_lazy("JSON schema validation")),
)
_LONGEST: Final = {"adapters": 6000, "right": 20_000}
_SPEED: Final = re.compile(r"\d{1,4}(\.\d{1,3})?", re.ASCII)


def form_values(sent: Mapping[str, str]) -> dict[str, str]:
    """Return the form's submitted values, "" for missing ones."""
    return {name: sent.get(name, "").strip()[: _LONGEST.get(name, 200)] for name in _FIELDS}


def arms_asked(variants: Sequence[str], *, again: bool) -> list[dict[str, str]]:
    """Return the arms, the base model's own checkpoint first; `again` repeats it at the end."""
    arms = [{"variant": ""}, *({"variant": name} for name in variants)]
    return [*arms, {"variant": "", "name": "original again"}] if again else arms


def settings_asked(values: Mapping[str, str], trace: UploadedFile[Any] | None) -> dict[str, Any]:
    """Parse load, scorer and price. Raises InvalidInputError naming the form's field."""
    load, scorer = _load(values, trace), _scorer(values)
    found: dict[str, Any] = {"load": load} if load else {}
    if scorer:
        found["quality"] = {"scorer": scorer}
    if price := _price(values):
        found["price"] = price
        if values["input"] or values["output"]:
            found["price"] |= {name: _money(values, name) for name in ("input", "output")}
    return found


def _price(values: Mapping[str, str]) -> dict[str, Any]:
    """Return the machine's price, as entered or by its row in the table; empty without either."""
    if values["instance_type"]:
        if values["hour"]:
            raise InvalidInputError(_("give either an instance type or a price per hour"), field="price")
        plan = values["plan"] if values["plan"] in PLANS else ON_DEMAND
        return {"instance_type": values["instance_type"][:40], "plan": plan}
    if values["hour"]:
        return {"hour": _money(values, "hour"), "currency": values["currency"][:3] or "USD"}
    return {}


def _load(values: Mapping[str, str], trace: UploadedFile[Any] | None) -> dict[str, Any]:
    load: dict[str, Any] = {}
    if trace is not None:
        if values["prompts"]:
            raise InvalidInputError(_("choose either a trace file or prompts"), field="trace")
        load["lengths"] = rows_of_file(trace)
    elif values["prompts"] == TRACE:
        load |= {"trace": "bundled", "most_prompt": 512}
    if values["adapters"]:
        load["adapters"] = True
    if values["concurrency"]:
        parts = _parts(values["concurrency"])
        if not all(part.isascii() and part.isdigit() and 1 <= int(part[:5]) <= 256 for part in parts):
            raise InvalidInputError(
                _("give numbers of streams from 1 to 256, such as 1 4"), field="concurrency"
            )
        load["concurrency"] = sorted({int(part) for part in parts})
    if values["speeds"]:
        load["speeds"] = _speeds(values["speeds"])
    if values["max_tokens"]:
        if not (
            values["max_tokens"].isascii()
            and values["max_tokens"].isdigit()
            and len(values["max_tokens"]) < 5
        ):
            raise InvalidInputError(_("give a whole number of tokens, up to 8192"), field="max_tokens")
        load["max_tokens"] = int(values["max_tokens"])
    return load


def _scorer(values: Mapping[str, str]) -> dict[str, Any]:
    """Return the scorer; the job itself checks the pattern or schema."""
    match values["scorer"]:
        case "regex" if values["right"]:
            return {"kind": "regex", "pattern": values["right"]}
        case "json_schema":
            try:
                schema = strict_json.loads(values["right"])
            except ValueError:
                schema = None
            if not isinstance(schema, dict):
                raise InvalidInputError(_("give a JSON schema, as an object"), field="right")
            return {"kind": "json_schema", "schema": schema}
        case "exact":
            return {"kind": "exact"}
        case "":
            return {}
    raise InvalidInputError(_("choose a scorer; a regular expression needs a pattern"), field="right")


def _speeds(text: str) -> list[float]:
    parts = _parts(text)
    speeds = sorted({float(part) for part in parts if _SPEED.fullmatch(part) and 0 < float(part) <= 1000})
    if len(speeds) != len(parts):
        raise InvalidInputError(_("give distinct speeds above 0, up to 1000, such as 1 4"), field="speeds")
    return speeds


def _parts(text: str) -> list[str]:
    return text.replace(",", " ").split()


def _money(values: Mapping[str, str], field: str) -> float:
    try:
        amount = float(values[field])
    except ValueError:
        amount = -1.0
    if not 0 <= amount < 1e6:
        raise InvalidInputError(_("give an amount of money, such as 1.21"), field=field)
    return amount
