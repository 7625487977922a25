"""Template tags and filters for icons, numbers and money."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from django import template
from django.contrib.staticfiles.storage import staticfiles_storage
from django.forms import BoundField
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from controlplane.billing.currency import money, money_computed, money_rounded
from controlplane.billing.taxes.selectors import rate_text
from controlplane.tenants.roles import Role

register = template.Library()
register.filter("money", money)
register.filter("rounded", money_rounded)
register.filter("computed", money_computed)

_BADGES = {"ready": "ok", "refused": "danger", "validating": "info", "pending": "info"}


@register.simple_tag
def icon(name: str, extra: str = "") -> SafeString:
    """Render a decorative icon of the sprite; the adjacent text carries the meaning."""
    url = staticfiles_storage.url("console/icons.svg")
    return format_html(
        '<svg class="icon {}" aria-hidden="true"><use href="{}#{}"></use></svg>', extra, url, name
    )


@register.simple_tag(takes_context=True)
def at_once(context: dict[str, Any]) -> SafeString:
    """Render attributes by which a form of filters applies each change, and keeps the focus."""
    return format_html(
        'hx-get="{}" hx-trigger="change delay:300ms, submit" hx-target="#main" hx-select="#main"'
        ' hx-swap="outerHTML show:none" hx-push-url="true"',
        context["request"].path,
    )


@register.filter
def tone(status: str) -> str:
    """Return the badge tone of an adapter version's status."""
    return _BADGES.get(status, "neutral")


@register.filter
def role_title(role: str) -> str:
    """Return a role's name. `get_role_display` would translate all roles' names for each row."""
    return str(Role(role).label) if role in Role else role


_COPIES = {"serving": "ok", "refusing": "warn", "silent": "danger", "failed": "danger", "untold": "neutral"}
_DEPLOYMENTS = {"serving": "ok", "degraded": "warn", "failed": "danger"}
_LEVELS = {"ok": "ok", "warn": "warn", "down": "danger"}
_TIERS = {"device": "D", "host": "H", "disk": "K", "server": "S", "absent": "–"}


@register.filter
def copy_tone(state: str) -> str:
    """Return the badge tone of a copy's state."""
    return _COPIES.get(state, "info")


@register.filter
def deployment_tone(status: str) -> str:
    """Return the badge tone of a deployment's status."""
    return _DEPLOYMENTS.get(status, "info")


@register.filter
def level_tone(level: str) -> str:
    """Return the badge tone of a component's health."""
    return _LEVELS.get(level, "neutral")


@register.filter
def tier_letter(tier: str) -> str:
    """Return the letter of a memory tier, shown in addition to its colour."""
    return _TIERS.get(tier, "?")


@register.filter
def share(part: float) -> str:
    """Format a share: `12 %`, with one more digit below 10 %."""
    return f"{part * 100:.1f} %" if 0 < part < 0.1 else f"{part * 100:.0f} %"


@register.filter
def ago(then: dt.datetime, now: dt.datetime) -> str:
    """Format how long before `now` a time was."""
    return _("%(time)s ago") % {"time": duration((now - then).total_seconds())}


@register.filter
def recent(then: dt.datetime) -> bool:
    """Return True for a time in the last minute, which `timesince` calls "0 minutes"."""
    return timezone.now() - then < dt.timedelta(minutes=1)


@register.filter
def codes(text: str) -> SafeString:
    """Render a text of the API, with the parts in backticks as code."""
    parts = text.split("`")
    marked = ((format_html("<code>{}</code>", part),) if at % 2 else (part,) for at, part in enumerate(parts))
    return format_html_join("", "{}", marked)


@register.filter
def meaning(state: dict[str, Any] | None) -> str:
    """Format the target of an alias in one state of an AliasChange."""
    if state is None:
        return "–"
    if state["arms"]:
        return ", ".join(f"v{number}: {percent} %" for number, percent in state["arms"])
    return f"v{state['version']}"


@register.filter
def cost(mean_logprob: float) -> str:
    """Format a mean log-probability as nats a token; higher is worse."""
    return f"{-mean_logprob:.2f}"


@register.filter
def amount(value: int) -> str:
    """Format a count, grouped in thousands."""
    return f"{value:,}"


@register.filter
def trimmed(value: str) -> str:
    """Strip trailing zeros from a decimal text."""
    return value.rstrip("0").rstrip(".") if "." in value else value


@register.filter
def compact(value: int) -> str:
    """Format a count for a headline: 1,234 in full, 12.3k, 4.5M."""
    for limit, suffix in ((10**9, "B"), (10**6, "M"), (10**4, "k")):
        if value >= limit:
            unit = 10**3 if suffix == "k" else limit
            return f"{value / unit:.1f}{suffix}"
    return f"{value:,}"


@register.filter
def as_json(value: object) -> str:
    """Format a value as readable JSON."""
    return json.dumps(value, ensure_ascii=False)


@register.filter
def milliseconds(value: float | None) -> str:
    """Format a latency: `87 ms`, `1.24 s`; a dash for none."""
    if value is None:
        return "–"
    return f"{value:,.0f} ms" if value < 1000 else f"{value / 1000:,.2f} s"


@register.filter
def percent(rate: Decimal) -> str:
    """Format an exact rate without trailing zeros: `8.875%`."""
    return f"{rate_text(rate)}%"


@register.filter
def size(value: int | None) -> str:
    """Format bytes as kB, MB or GB."""
    if value is None:
        return "–"
    for limit, suffix in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if value >= limit:
            return f"{value / limit:.1f} {suffix}"
    return f"{value} B"


@register.filter
def duration(seconds: float) -> str:
    """Format seconds: `12 s`, `3 min 5 s`, `2 h 4 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


@register.filter
def at(values: Sequence[str], index: int) -> str:
    """Return the value at an index; "" beyond the end."""
    return values[index] if index < len(values) else ""


@register.filter
def as_input(field: BoundField) -> SafeString:
    """Render a form field with our style, except checkboxes and radio buttons."""
    input_type = getattr(field.field.widget, "input_type", "")
    return field.as_widget(attrs={} if input_type in ("checkbox", "radio") else {"class": "input"})
