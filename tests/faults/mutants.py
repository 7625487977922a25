"""Mutants of Python source: small changes at a syntax node's position, which leave all other text as it is.

An operator changes a comparison, an arithmetic operation, a condition, an integer, `and` or `or`, a statement
or a returned value. Text that tests cannot notice yields no mutant: annotations, decorators and log calls.
Neither does an assignment whose deletion leaves a name undefined, since every test that reaches it fails.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeGuard

_COMPARISONS: Final = {
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "==": "!=",
    "!=": "==",
    "in": "not in",
    "not in": "in",
    "is": "is not",
    "is not": "is",
}
_ARITHMETIC: Final = {
    "+": "-",
    "-": "+",
    "*": "/",
    "/": "*",
    "//": "*",
    "%": "*",
    "**": "*",
    "<<": ">>",
    ">>": "<<",
    "&": "|",
    "|": "&",
    "^": "&",
    "@": "*",
}
_JUNCTIONS: Final = {"and": "or", "or": "and"}
_TOKEN: Final = re.compile(
    rb"not\s+in\b|is\s+not\b|\b(?:in|is|and|or)\b|\*\*|//|<<|>>|[<>=!]=|[<>+\-*/%&|^@]"
)
_SKIPPED_FIELDS: Final = frozenset({"annotation", "returns", "decorator_list", "type_comment"})
_LOGGERS: Final = frozenset({"logger", "logging", "warnings"})


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one file.

    Attributes:
        key: equal in every revision whose function has the same changed code.
        line: of the change, from 1.
        start, end: byte offsets of `before` in the file; `after` replaces it.
    """

    key: str
    file: str
    line: int
    operator: str
    start: int
    end: int
    before: str
    after: str

    def apply(self, source: bytes) -> str:
        """Return the whole text of the file with the change."""
        return (source[: self.start] + self.after.encode() + source[self.end :]).decode()


@dataclass(frozen=True, slots=True)
class _Change:
    operator: str
    start: int
    end: int
    after: str
    function: str


def mutants(file: str, source: bytes) -> list[Mutant]:
    """Return every mutant of a module in the order of the source; see `compiles`."""
    changes = sorted(
        set(_Finder(source).changes()), key=lambda change: (change.start, change.end, change.operator)
    )
    lines = source.decode().split("\n")
    found, seen = [], Counter[str]()
    for change in changes:
        before = source[change.start : change.end].decode()
        line = source.count(b"\n", 0, change.start)
        identity = [file, change.function, change.operator, lines[line].strip(), before, change.after]
        code = "\0".join(identity)
        seen[code] += 1
        key = hashlib.sha256(f"{code}\0{seen[code]}".encode()).hexdigest()[:12]
        found.append(
            Mutant(key, file, line + 1, change.operator, change.start, change.end, before, change.after)
        )
    return found


def compiles(text: str) -> bool:
    """Return True when Python accepts the text of a module."""
    try:
        compile(text, "mutant", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


class _Finder:
    """Walks a module's syntax tree; nodes' columns are bytes, so the source is too."""

    def __init__(self, source: bytes) -> None:
        self._source = source
        self._lines = [0]
        for line in source.split(b"\n"):
            self._lines.append(self._lines[-1] + len(line) + 1)

        self._bindings = Counter[str]()
        """How often the function at hand binds each of its names."""

    def changes(self) -> Iterator[_Change]:
        yield from self._walk(ast.parse(self._source), "")

    def _walk(self, node: ast.AST, function: str) -> Iterator[_Change]:
        if _is_hidden(node):
            return
        yield from self._change(node, function)
        outer = self._bindings
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            function = f"{function}.{node.name}"
            self._bindings = _bindings(node)
        yield from self._walk_fields(node, function)
        self._bindings = outer

    def _walk_fields(self, node: ast.AST, function: str) -> Iterator[_Change]:
        for name, value in ast.iter_fields(node):
            if name in _SKIPPED_FIELDS:
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from self._walk(child, function)

    def _change(self, node: ast.AST, function: str) -> Iterator[_Change]:
        match node:
            case ast.Constant(value=int(number)) if not isinstance(number, bool):
                yield self._replace("integer", node, str(number + 1), function)
            case ast.Compare(left=left, comparators=[right]):
                yield from self._swap("comparison", _COMPARISONS, left, right, function)
            case ast.BoolOp(values=[left, right, *_]):
                yield from self._swap("junction", _JUNCTIONS, left, right, function)
            case ast.BinOp(left=left, right=right) if not (_is_text(left) or _is_text(right)):
                yield from self._swap("arithmetic", _ARITHMETIC, left, right, function)
            case ast.AugAssign(target=left, value=right):
                yield from self._swap("arithmetic", _ARITHMETIC, left, right, function)
                yield self._replace("deletion", node, "pass", function)
            case ast.Expr(value=ast.Call() | ast.Await()):
                yield self._replace("deletion", node, "pass", function)
            case ast.Assign(targets=targets) if all(map(self._is_bound_again, targets)):
                yield self._replace("deletion", node, "pass", function)
            case ast.Return(value=ast.expr() as value) if not _is_none(value):
                yield self._replace("return", node, "return None", function)
        if isinstance(node, ast.If | ast.While | ast.IfExp) and not isinstance(node.test, ast.Constant):
            yield self._negate(node.test, function)

    def _is_bound_again(self, target: ast.expr) -> bool:
        """Return False where the deletion of an assignment to `target` would leave a name undefined."""
        names = [node.id for node in ast.walk(target) if _binds(node)]
        return bool(self._bindings) and all(self._bindings[name] > 1 for name in names)

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or 0
        return self._lines[node.lineno - 1] + node.col_offset, self._lines[end_line - 1] + end_column

    def _replace(self, operator: str, node: ast.expr | ast.stmt, after: str, function: str) -> _Change:
        return _Change(operator, *self._span(node), after, function)

    def _negate(self, test: ast.expr, function: str) -> _Change:
        start, end = self._span(test)
        return _Change("negation", start, end, f"not ({self._source[start:end].decode()})", function)

    def _swap(
        self, operator: str, swaps: dict[str, str], left: ast.expr, right: ast.expr, function: str
    ) -> Iterator[_Change]:
        """Replace the operator between two operands by its counterpart."""
        first, last = self._span(left)[1], self._span(right)[0]
        if match := _TOKEN.search(self._source, first, last):
            token = b" ".join(match[0].split()).decode()
            if token in swaps:
                yield _Change(operator, match.start(), match.end(), swaps[token], function)


def _bindings(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> Counter[str]:
    if isinstance(node, ast.ClassDef):
        return Counter()
    names = [each.id for each in ast.walk(node) if _binds(each)]
    return Counter([*names, *(each.arg for each in ast.walk(node) if isinstance(each, ast.arg))])


def _binds(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _is_hidden(node: ast.AST) -> bool:
    """Return True for code whose change no test can notice, and for f-strings: their nodes lack positions."""
    match node:
        case ast.JoinedStr():
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
            return name in _LOGGERS
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Subscript(value=ast.Name(id="Literal")):
            return True
    return False


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes | None)
    )


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
