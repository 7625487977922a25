"""Triton's `triton_python_backend_utils` as far as a BLS model needs it, over this process's models.

Source: python_backend's README and examples/bls_decoupled. Only decoupled calls are served.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, Final, Protocol

FINAL: Final = 1


class TritonError:
    """An error with Triton's code."""

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = range(8)

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        self._message, self._code = message, code

    def message(self) -> str:
        return self._message

    def code(self) -> int:
        return self._code


class Tensor:
    """A named array."""

    def __init__(self, name: str, array: Any) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Any:
        return self._array


class InferenceResponse:
    """One response of a model: tensors, or an error."""

    def __init__(self, output_tensors: Sequence[Tensor] = (), error: TritonError | None = None) -> None:
        self._tensors, self._error = list(output_tensors), error

    def output_tensors(self) -> list[Tensor]:
        return self._tensors

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error


class Responses(Protocol):
    """A decoupled model's responses."""

    def __iter__(self) -> Iterator[InferenceResponse]: ...

    def cancel(self) -> None: ...


Infer = Callable[[str, Sequence[Tensor]], Responses]


class ResponseSender:
    """Passes a model's responses on; `cancelled` says whether the caller has gone."""

    def __init__(
        self, send: Callable[[InferenceResponse | None, bool], None], cancelled: Callable[[], bool]
    ) -> None:
        self._send, self._cancelled = send, cancelled

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        self._send(response, flags == FINAL)

    def is_cancelled(self) -> bool:
        return self._cancelled()


class InferenceRequest:
    """A request: one that a model got, or one that it makes."""

    infer: Infer

    def __init__(
        self,
        *,
        inputs: Sequence[Tensor],
        model_name: str = "",
        requested_output_names: Sequence[str] = (),
        sender: ResponseSender | None = None,
    ) -> None:
        self._inputs, self._model, self._sender = list(inputs), model_name, sender

    def inputs(self) -> list[Tensor]:
        return self._inputs

    def get_response_sender(self) -> ResponseSender | None:
        return self._sender

    def exec(self, *, decoupled: bool) -> Responses:
        if not decoupled:
            raise ValueError("the local SageMaker serves decoupled models: call exec(decoupled=True)")
        return type(self).infer(self._model, self._inputs)


def install(infer: Infer) -> None:
    """Make `import triton_python_backend_utils` find this module's names; `infer` calls another model."""
    InferenceRequest.infer = staticmethod(infer)
    module: Any = ModuleType("triton_python_backend_utils")
    for item in (TritonError, Tensor, InferenceResponse, InferenceRequest):
        setattr(module, item.__name__, item)
    module.TRITONSERVER_RESPONSE_COMPLETE_FINAL = FINAL
    module.get_input_tensor_by_name = lambda request, name: _named(request.inputs(), name)
    module.get_output_tensor_by_name = lambda response, name: _named(response.output_tensors(), name)
    sys.modules["triton_python_backend_utils"] = module


def _named(tensors: Sequence[Tensor], name: str) -> Tensor | None:
    return next((item for item in tensors if item.name() == name), None)
