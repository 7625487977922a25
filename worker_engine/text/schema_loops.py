"""References of a JSON schema that can match no text, because they lead to themselves and nothing else.

The grammar library compiles such a schema and stops where it would need the reference's text.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote

from worker_engine.errors import InvalidRequest

_NEVER: Final = -1
"""Conditions left of a schema that nothing matches: no count of met conditions makes it 0."""


def without_endless_references(schema: Any) -> Any:
    """Return `schema` with `false` in place of every subschema that no finite text matches.

    Raises:
        InvalidRequest: nothing matches the schema as a whole.
    """
    dead = _Graph(schema).dead()
    if id(schema) in dead:
        raise InvalidRequest(
            "it can match no text: look for a reference that leads to itself and nothing else"
        )
    return _prune(schema, dead) if dead else schema


class _Graph:
    """Schemas as nodes, each with the number of its conditions that are not known to be satisfiable.

    A node is satisfiable once that number is 0; conditions are satisfied from the leaves upwards, so that a
    loop never satisfies itself. The work is linear in the size of the schema.
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        self._nodes: dict[int, int] = {}
        self._left: list[int] = []
        self._dependents: list[list[int]] = []
        self._unread: list[dict[str, Any]] = []
        self._node(root)
        while self._unread:
            self._read(self._unread.pop())

    def dead(self) -> set[int]:
        """Return the ids of the schema objects that no text matches."""
        ready = [node for node, left in enumerate(self._left) if left == 0]
        while ready:
            for dependent in self._dependents[ready.pop()]:
                self._left[dependent] -= 1
                if self._left[dependent] == 0:
                    ready.append(dependent)
        return {key for key, node in self._nodes.items() if self._left[node] != 0}

    def _node(self, schema: Any) -> int:
        """Return the node of a schema; a schema that is no object gets one of its own."""
        if not isinstance(schema, dict):
            return self._add(_NEVER if schema is False else 0)
        if id(schema) not in self._nodes:
            self._nodes[id(schema)] = self._add(0)
            self._unread.append(schema)
        return self._nodes[id(schema)]

    def _add(self, left: int) -> int:
        self._left.append(left)
        self._dependents.append([])
        return len(self._left) - 1

    def _add_condition(self, node: int, condition: int) -> None:
        self._left[node] += 1
        self._dependents[condition].append(node)

    def _read(self, schema: dict[str, Any]) -> None:
        node = self._node(schema)
        for condition in (
            *self._references(schema),
            *_items(schema.get("allOf")),
            *_required_subschemas(schema),
        ):
            self._add_condition(node, self._node(condition))
        for name in ("anyOf", "oneOf"):
            if branches := _items(schema.get(name)):
                any_branch = self._add(1)
                for branch in branches:
                    self._dependents[self._node(branch)].append(any_branch)
                self._add_condition(node, any_branch)
        # Optional subschemas are read too, so that endless ones are pruned.
        for subschema in _optional_subschemas(schema):
            self._node(subschema)

    def _references(self, schema: dict[str, Any]) -> list[Any]:
        reference = schema.get("$ref")
        target = self._resolve(reference) if isinstance(reference, str) else None
        return [] if target is None else [target]

    def _resolve(self, reference: str) -> Any:
        """Return what a JSON pointer points at; None for any other reference."""
        if reference != "#" and not reference.startswith("#/"):
            return None
        value = self._root
        for part in unquote(reference).split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict):
                value = value.get(key)
            elif isinstance(value, list) and key.isdecimal() and len(key) < 10 and int(key) < len(value):
                value = value[int(key)]
            else:
                return None
        return value


def _required_subschemas(schema: dict[str, Any]) -> list[Any]:
    """Return the subschemas without which an object or array of this schema cannot be."""
    if schema.get("type") == "object":
        properties = schema.get("properties")
        known: dict[str, Any] = properties if isinstance(properties, dict) else {}
        names = [name for name in _items(schema.get("required")) if isinstance(name, str)]
        return [known[name] for name in names if name in known]
    if schema.get("type") == "array":
        count = schema.get("minItems")
        if isinstance(count, int) and count > 0:
            first = _items(schema.get("prefixItems"))
            rest = [schema["items"]] if count > len(first) and "items" in schema else []
            return [*first[:count], *rest]
    return []


def _optional_subschemas(schema: dict[str, Any]) -> list[Any]:
    maps = (schema.get(name) for name in ("properties", "patternProperties"))
    subschemas = [item for each in maps if isinstance(each, dict) for item in each.values()]
    subschemas += _items(schema.get("prefixItems"))
    return subschemas + [schema[name] for name in ("items", "additionalProperties") if name in schema]


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _prune(value: Any, dead: set[int]) -> Any:
    if isinstance(value, dict):
        return False if id(value) in dead else {name: _prune(item, dead) for name, item in value.items()}
    return [_prune(item, dead) for item in value] if isinstance(value, list) else value
