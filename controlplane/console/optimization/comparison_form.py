"""The form of a comparison: a few fields as arms and settings; the REST API has all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.core.files.uploadedfile import UploadedFile
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from contracts import strict_json
from controlplane.console.form_errors import parsed
from controlplane.errors import InvalidInputError
from controlplane.optimization.comparison_input import ComparisonInput
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
_PLACES: Final = {
    **dict.fromkeys(("kind", "pattern", "schema"), "right"),
    **dict.fromkeys(("base_model", "name", "prompts", "texts", "currency"), "form"),
}
"""Where the errors of the REST API's fields stand that are no inputs of the form, or selected ones."""


def form_values(sent: Mapping[str, str]) -> dict[str, str]:
    """Return the form's submitted values, "" for missing ones."""
    return {name: sent.get(name, "").strip()[: _LONGEST.get(name, 200)] for name in _FIELDS}


def comparison_asked(
    values: Mapping[str, str], variants: Sequence[str], trace: UploadedFile[Any] | None, *, again: bool
) -> dict[str, Any]:
    """Parse the form by the REST API's input. Raises InvalidInputError.

    Args:
        variants: those to compare with the base model's own checkpoint, which is the first arm.
        again: measure the own checkpoint again at the end.
    """
    arms = [{"variant": name} for name in ("", *variants)]
    sent: dict[str, Any] = {
        "base_model": values["base_model"],
        "name": values["name"],
        "arms": [*arms, {"variant": "", "name": "original again"}] if again else arms,
        "prompts": values["prompts"] if values["prompts"] != TRACE else "",
        "texts": values["texts"],
        "adapters": [{"engine_name": name} for name in values["adapters"].split()],
    }
    if load := _load(values, trace):
        sent["load"] = load
    if values["scorer"]:
        sent["quality"] = {"scorer": _scorer(values["scorer"], values["right"])}
    if values["hour"] or values["instance_type"]:
        own = ("hour",) if values["hour"] else ("plan",)
        names = (*own, "instance_type", "input", "output")
        price = {name: values[name] for name in names if values[name]}
        sent["price"] = price | ({"currency": values["currency"] or "USD"} if values["hour"] else {})
    found = parsed(ComparisonInput, sent)
    for name in {"concurrency", "speeds"} & found.get("load", {}).keys():
        found["load"][name] = sorted(set(found["load"][name]))
    return found


def placed(errors: Mapping[str, str]) -> dict[str, str]:
    """Return the errors by the form's inputs: that of `load.speeds` is at `speeds`."""
    named = ((field.rpartition(".")[2], text) for field, text in errors.items())
    return {_PLACES.get(name, name): text for name, text in named}


def _load(values: Mapping[str, str], trace: UploadedFile[Any] | None) -> dict[str, Any]:
    lists = {name: values[name].replace(",", " ").split() for name in ("concurrency", "speeds")}
    load: dict[str, Any] = {name: parts for name, parts in lists.items() if parts}
    if trace is not None:
        if values["prompts"]:
            raise InvalidInputError(_("choose either a trace file or prompts"), field="trace")
        load["lengths"] = rows_of_file(trace)
    elif values["prompts"] == TRACE:
        load |= {"trace": "bundled", "most_prompt": 512}
    if values["adapters"]:
        load["adapters"] = True
    return load | ({"max_tokens": values["max_tokens"]} if values["max_tokens"] else {})


def _scorer(kind: str, right: str) -> dict[str, Any]:
    """Return the scorer; the job itself checks the pattern or schema."""
    match kind:
        case "regex" if not right:
            raise InvalidInputError(_("a regular expression needs a pattern"), field="right")
        case "regex":
            return {"kind": kind, "pattern": right}
        case "json_schema":
            try:
                return {"kind": kind, "schema": strict_json.loads(right)}
            except ValueError:
                raise InvalidInputError(_("give a JSON schema, as an object"), field="right") from None
    return {"kind": kind}
