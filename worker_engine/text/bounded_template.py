"""Chat templates whose rendering is bounded against the arguments that a caller gives them.

A template is the operator's, who chose the checkpoint. Its arguments are a tenant's (4 KiB, 4 levels deep):
one may be the number of repetitions in a loop, a width or a factor. The bounds are far above what any chat
needs: on characters written, on the items of all ranges together, and on look-ups, calls, operations and
rounds of loops. No bound holds for lists that a template nests in themselves again and again, nor for the
time inside a single filter such as `sort`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import wraps
from typing import Any, Final

import jinja2
from jinja2 import nodes
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from worker_engine.text.text_growth import (
    GROWING_FILTERS,
    NumberTooLargeError,
    filter_length,
    method_length,
    operation_length,
)

MAX_CHARACTERS: Final = 32 << 20
"""Most characters of a rendered chat, and of one text or list that an operation makes."""
MAX_ITEMS: Final = 200_000
"""Most items of all ranges of one rendering."""
MAX_STEPS: Final = 3_000_000
"""Most look-ups, calls, operations and rounds of loops of one rendering: seconds. A message takes some 50."""
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

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.globals["range"] = _range
        del self.globals["lipsum"]
        self.filters |= {name: _bounded_filter(name, self.filters[name]) for name in GROWING_FILTERS}
        self.filters |= {_ROUNDS: _rounds, _JOINED: _joined}

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """Join the pieces of a macro, a call or a set block."""
        found = list(pieces)
        _demand_length(sum(map(len, found)))
        return "".join(found)

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(_Counted().visit(source), *args, **kwargs)

    def getattr(self, obj: Any, attribute: str) -> Any | Undefined:
        _step()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any | Undefined:
        _step()
        return super().getitem(obj, argument)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        _step()
        method = getattr(__obj, "__wrapped__", __obj)
        text = getattr(method, "__self__", None)
        if isinstance(text, str | bytes):
            _demand_length(method_length(text, method.__name__, args, kwargs))
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _step()
        if operator == "**" and abs(right) > _MAX_POWER:
            raise jinja2.TemplateError(f"it raises a number to a power above {_MAX_POWER}")
        try:
            _demand_length(operation_length(operator, left, right))
        except NumberTooLargeError as error:
            raise jinja2.TemplateError(str(error)) from error
        return super().call_binop(context, operator, left, right)


_ROUNDS: Final = "counted rounds"
_JOINED: Final = "joined texts"
"""Names of filters that no template can write."""


class _Counted(NodeTransformer):
    """Counts the rounds of loops, and bounds the texts that `~` joins."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = _applied(_ROUNDS, node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        self.generic_visit(node)
        return _applied(_JOINED, nodes.List(node.nodes, lineno=node.lineno, environment=node.environment))


def _applied(name: str, node: nodes.Node) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno, environment=node.environment)


def _rounds(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        _step()
        yield item


def _joined(items: list[Any]) -> str:
    _step()
    return BoundedEnvironment.concat(map(str, items))


def _bounded_filter(name: str, apply: Callable[..., Any]) -> Callable[..., Any]:
    """Return the filter with a bound on what it makes."""
    at = 1 if name in ("replace", "join") else 0  # these get the evaluation's context first

    @wraps(apply)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        _step()
        before, rest = args[:at], list(args[at:])
        if name == "join" and rest and not isinstance(rest[0], str | Mapping):
            rest[0] = list(_rounds(rest[0]))
        _demand_length(filter_length(name, rest[0], rest[1:], kwargs) if rest else 0)
        return apply(*before, *rest, **kwargs)

    return bounded


def _demand_length(length: int) -> None:
    if length > MAX_CHARACTERS:
        raise _too_long()


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
