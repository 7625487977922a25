"""Chat templates whose rendering is bounded, whatever arguments a caller gives them.

An argument may be the number of repetitions in a loop or a multiplication. The bounds are far above what any
chat needs: on characters written, on the items of all ranges together, and on look-ups, calls and operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final

import jinja2
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_CHARACTERS: Final = 32 << 20
"""Most characters of a rendered chat, and of one text or list that an operation makes."""
MAX_ITEMS: Final = 200_000
"""Most items of all ranges of one rendering."""
MAX_STEPS: Final = 3_000_000
"""Most look-ups, calls and operations of one rendering: seconds. A message takes some 50."""
_MAX_POWER: Final = 64


class _Budget:
    """Remaining items and steps of one rendering."""

    __slots__ = ("items", "steps")

    def __init__(self) -> None:
        self.items, self.steps = MAX_ITEMS, MAX_STEPS

    def step(self) -> None:
        self.steps -= 1
        if self.steps < 0:
            raise jinja2.TemplateError(f"it takes more than {MAX_STEPS} steps")


_budget: Final[ContextVar[_Budget]] = ContextVar("template_budget")


def render(template: jinja2.Template, variables: Mapping[str, Any]) -> str:
    """Return the text of a template of a BoundedEnvironment.

    Raises:
        jinja2.TemplateError: a bound is exceeded.
        Exception: whatever the template raises on these variables.
    """
    token = _budget.set(_Budget())
    try:
        pieces, size = list[str](), 0
        for piece in template.generate(variables):
            _step()
            pieces.append(piece)
            size += len(piece)
            if size > MAX_CHARACTERS:
                raise _too_long()
        return "".join(pieces)
    finally:
        _budget.reset(token)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with the bounds above, for templates that `render` runs."""

    intercepted_binops = frozenset({"*", "**", "+"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.globals["range"] = _range
        del self.globals["lipsum"]

    def getattr(self, obj: Any, attribute: str) -> Any | Undefined:
        _step()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any | Undefined:
        _step()
        return super().getitem(obj, argument)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        _step()
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _step()
        if operator == "**" and abs(right) > _MAX_POWER:
            raise jinja2.TemplateError(f"it raises a number to a power above {_MAX_POWER}")
        if _length_made(operator, left, right) > MAX_CHARACTERS:
            raise _too_long()
        return super().call_binop(context, operator, left, right)


def _length_made(operator: str, left: Any, right: Any) -> int:
    """Return the length of the text or list that an operation makes; 0 for numbers."""
    lengths = [len(item) for item in (left, right) if isinstance(item, str | list | tuple)]
    if operator == "+":
        return sum(lengths) if len(lengths) == 2 else 0
    times = [item for item in (left, right) if isinstance(item, int)]
    return lengths[0] * times[0] if operator == "*" and lengths and times else 0


def _step() -> None:
    _budget.get().step()


def _range(*arguments: int) -> range:
    """Return a range, and take its items from the rendering's budget."""
    found, budget = range(*arguments), _budget.get()
    budget.items -= len(found)
    if budget.items < 0:
        raise jinja2.TemplateError(f"its ranges have more than {MAX_ITEMS} items")
    return found


def _too_long() -> jinja2.TemplateError:
    return jinja2.TemplateError(f"it writes more than {MAX_CHARACTERS} characters")
