"""Two caches for Triton's interpreter, which otherwise spends a third of its time on what does not change.

Every call of a device function replaces the members of `triton.language`, although the launch or an earlier
call has replaced them already. Every new value builds the table of NumPy's types.
"""

from __future__ import annotations

import functools
from typing import Any

import triton.language as tl
from triton.runtime import interpreter


@functools.cache
def install() -> None:
    """Add the caches to the interpreter of this process."""
    launch, call = interpreter.GridExecutor.__call__, interpreter.InterpretedFunction.__call__
    numpy_type = interpreter._get_np_dtype
    replaced: list[set[frozenset[int]]] = []
    """For each running launch, the sets of modules whose members it has replaced."""
    numpy_types: dict[str, Any] = {}

    @functools.cache
    def modules_of(function: Any) -> frozenset[int]:
        return frozenset({id(tl), id(tl.core)} & set(map(id, function.__globals__.values())))

    def launch_once(executor: Any, *arguments: Any, **options: Any) -> Any:
        replaced.append(set())
        try:
            return launch(executor, *arguments, **options)
        finally:
            replaced.pop()

    def call_cheaply(function: Any, *arguments: Any, **options: Any) -> Any:
        modules = modules_of(function.fn)
        if not replaced or modules not in replaced[-1]:
            if replaced:
                replaced[-1].add(modules)
            return call(function, *arguments, **options)
        try:
            return function.rewrite()(*arguments, **options)
        except Exception as error:
            raise interpreter.InterpreterError(repr(error)) from error

    def numpy_type_of(kind: Any) -> Any:
        element = kind.element_ty if isinstance(kind, tl.block_type) else kind
        if element.name not in numpy_types:
            numpy_types[element.name] = numpy_type(element)
        return numpy_types[element.name]

    interpreter.GridExecutor.__call__ = launch_once
    interpreter.InterpretedFunction.__call__ = call_cheaply
    interpreter._get_np_dtype = numpy_type_of
