"""Small changes of a module's meaning, one at a time, as source text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_COMPARISONS: Final[dict[type[ast.cmpop], str]] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
_ARITHMETIC: Final[dict[type[ast.operator], str]] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.FloorDiv: "*", ast.Div: "*", ast.Mod: "+",
}  # fmt: skip
_ANNOTATIONS: Final = ("annotation", "returns", "type_params", "decorator_list")


@dataclass(frozen=True, slots=True, order=True)
class Mutant:
    """The text from `start` to `end` (bytes of UTF-8) of `file` becomes `new`."""

    file: str
    line: int
    start: int
    end: int
    new: str
    kind: str

    def applied(self, text: str) -> str:
        data = text.encode()
        return (data[: self.start] + self.new.encode() + data[self.end :]).decode()


class _Source:
    """A module's text, with byte offsets of its nodes."""

    def __init__(self, text: str) -> None:
        self.data = text.encode()
        self._lines = [0]
        for line in self.data.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        end_line, end_col = node.end_lineno or node.lineno, node.end_col_offset or 0
        return self._lines[node.lineno - 1] + node.col_offset, self._lines[end_line - 1] + end_col

    def text(self, node: ast.expr) -> str:
        start, end = self.span(node)
        return self.data[start:end].decode()


def mutants_of(file: str, text: str) -> list[Mutant]:
    """Every mutant of the bodies of the module's functions, in order."""
    source, found = _Source(text), list[Mutant]()
    for function in (
        node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ):
        for statement in function.body:
            for node in _nodes(statement):
                for kind, new in _changes(node, source):
                    start, end = source.span(node)
                    found.append(Mutant(file, node.lineno, start, end, new, kind))
    return sorted(set(found))


def _nodes(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """`node` and what it is made of, without annotations, docstrings, f-strings and messages of errors."""
    if isinstance(node, ast.expr | ast.stmt):
        yield node
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return
    for name, value in ast.iter_fields(node):
        if name not in _ANNOTATIONS:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _nodes(child)


def _changes(node: ast.expr | ast.stmt, source: _Source) -> Iterator[tuple[str, str]]:
    """Kinds and new texts of the node's mutants."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        if new := _COMPARISONS.get(type(node.ops[0])):
            yield "comparison", f"{source.text(node.left)} {new} {source.text(node.comparators[0])}"
    elif isinstance(node, ast.BinOp):
        if new := _ARITHMETIC.get(type(node.op)):
            yield "arithmetic", f"({source.text(node.left)}) {new} ({source.text(node.right)})"
    elif isinstance(node, ast.BoolOp):
        word = " or " if isinstance(node.op, ast.And) else " and "
        yield "boolean", "(" + word.join(f"({source.text(value)})" for value in node.values) + ")"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "negation", f"bool({source.text(node.operand)})"
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield "constant", str(not node.value)
        elif isinstance(node.value, int | float):
            yield "constant", repr(node.value + 1)
    elif isinstance(node, ast.stmt):
        yield from _statement(node, source)


def _statement(node: ast.stmt, source: _Source) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Return) and node.value is not None:
        for new in ("None", "True", "False"):
            if source.text(node.value) != new:
                yield "return", f"return {new}"
    elif isinstance(node, ast.AugAssign) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await)
    ):
        yield "deletion", "pass"
    elif isinstance(node, ast.If | ast.While):
        start, end = source.span(node.test)
        # The whole statement is one node: only its condition changes.
        first, last = source.span(node)
        text = source.data
        negated = b"not (" + text[start:end] + b")"
        yield "negation", (text[first:start] + negated + text[end:last]).decode()
