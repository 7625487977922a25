"""A scaling policy's form, whose schedule is one rule per line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from django.utils.translation import gettext as _

from controlplane.console.form_errors import parsed
from controlplane.deployments.scaling.policy import ScalingPolicy
from controlplane.deployments.scaling_api import ScalingInput
from controlplane.errors import InvalidInputError

FIELDS: Final = tuple(ScalingInput().get_fields())
_LINE: Final = re.compile(r"(\S+)\s+(\d\d:\d\d)\s+([a-z,]+)\s+(\d{1,4})-(\d{1,4})")


def policy_values(values: Mapping[str, str]) -> dict[str, Any]:
    """Parse the form.

    Raises:
        InvalidInputError: a field, or a line of the schedule, is malformed.
    """
    lines = [line for line in values.get("schedule", "").splitlines() if line.strip()]
    schedule = {"schedule": [_entry(line.strip().lower()) for line in lines] or ""}
    return parsed(ScalingInput, {**values, **schedule})


def form_values(policy: ScalingPolicy | None) -> dict[str, str]:
    """Return a policy as the form's values; empty for no policy."""
    if policy is None:
        return {}
    fields = policy.to_json() | {"min_copies": policy.min_copies, "max_copies": policy.max_copies}
    found = {name: "" if fields[name] is None else str(fields[name]) for name in FIELDS}
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
    return {"name": name, "at": at, "days": days.split(","), "min_copies": least, "max_copies": most}
