"""A scaling policy's form: its raw texts, and their parsed values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from django.utils.translation import gettext as _

from controlplane.deployments.scaling.policy import ScalingPolicy
from controlplane.errors import InvalidInputError

_NUMBERS: Final = (
    "min_copies",
    "max_copies",
    "from_zero",
    "out_after",
    "in_after",
    "out_cooldown",
    "in_cooldown",
    "hold_seconds",
    "release_cooldown_minutes",
)
_TEXTS: Final = ("metric", "timezone", "routing", "release")
FIELDS: Final = ("target", "protect", "schedule", *_NUMBERS, *_TEXTS)
_LINE: Final = re.compile(r"(\S+)\s+(\d\d:\d\d)\s+([a-z,]+)\s+(\d{1,4})-(\d{1,4})")


def policy_values(values: Mapping[str, str]) -> dict[str, Any]:
    """Parse the non-empty fields.

    Raises:
        InvalidInputError: a number, or a line of the schedule, is malformed.
    """
    found: dict[str, Any] = {name: values[name] for name in _TEXTS if values.get(name)}
    for name in _NUMBERS:
        if text := values.get(name):
            if not (text.isascii() and text.isdigit() and len(text) < 9):
                raise InvalidInputError(_("give a whole number"), field=name)
            found[name] = int(text)
    if text := values.get("target"):
        try:
            found["target"] = float(text)
        except ValueError:
            raise InvalidInputError(_("give a number such as 4 or 0.5"), field="target") from None
    found["protect"] = values.get("protect") == "on"
    lines = [line for line in values.get("schedule", "").splitlines() if line.strip()]
    return found | ({"schedule": [_entry(line.strip().lower()) for line in lines]} if lines else {})


def form_values(policy: ScalingPolicy | None) -> dict[str, str]:
    """Return a policy as the form's values; empty for no policy."""
    if policy is None:
        return {}
    fields = policy.to_json() | {"min_copies": policy.min_copies, "max_copies": policy.max_copies}
    found = {name: "" if fields[name] is None else str(fields[name]) for name in (*_NUMBERS, *_TEXTS)}
    lines = [
        f"{item.name} {item.at} {','.join(item.days)} {item.min_copies}-{item.max_copies}"
        for item in policy.schedule
    ]
    return found | {
        "target": f"{policy.target:g}",
        "protect": "on" if policy.protect else "",
        "schedule": "\n".join(lines),
    }


def _entry(line: str) -> dict[str, Any]:
    match = _LINE.fullmatch(line)
    if match is None:
        text = _("a line of the schedule is like: night 20:00 mon,tue,wed,thu,fri 0-2")
        raise InvalidInputError(text, field="schedule")
    name, at, days, least, most = match.groups()
    return {
        "name": name,
        "at": at,
        "days": days.split(","),
        "min_copies": int(least),
        "max_copies": int(most),
    }
