"""Everything that the worker refuses or fails at.

WorkerError
├── ConfigError              the process cannot start like this
│   └── CheckpointError      the model folder is not a checkpoint that we serve
├── OptimizationError        a checkpoint cannot be made smaller or faster like this
└── RequestError             reaches the caller in OpenAI's form
    ├── InvalidRequest       400
    │   ├── UnknownParameter
    │   ├── MissingParameter
    │   ├── ContextLengthExceeded
    │   ├── GrammarTooComplex
    │   ├── AdapterRefused
│   └── EmbedsOnly
    ├── Unauthorized         401
    ├── ModelNotFound        404
    │   └── AdapterNotFound
    ├── AdapterFilesNotFound 404
    ├── RouteNotFound        404
    ├── MethodNotAllowed     405
    ├── BodyTimedOut         408
    ├── BodyTooLarge         413
    ├── TooManyRequests      429, a retry helps
    ├── GenerationFailed     500
    ├── GenerationTimedOut   504
    └── Unavailable          503, a retry helps
        ├── AdapterUnavailable
        └── DeadlineExceeded
"""

from __future__ import annotations

from typing import Any, ClassVar


class WorkerError(Exception):
    """Base of every error that the worker raises on purpose."""


class ConfigError(WorkerError):
    """A setting, flag or environment variable is missing or malformed; the text says which and how."""


class CheckpointError(ConfigError):
    """The model folder lacks a file, or holds a model that this worker does not serve."""


class OptimizationError(WorkerError):
    """Work on a checkpoint cannot be done, or not now; the text says what to do.

    Attributes:
        code: unsupported_model, bad_data, output_exists or out_of_disk.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class RequestError(WorkerError):
    """One request cannot be served; others go on.

    Attributes:
        status: HTTP status.
        param: the request's field at fault, if it is one.
        retry_after: seconds after which the same request may succeed; None when a retry is useless.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str] = "internal_error"
    retry_after: int | None = None

    def __init__(self, message: str, *, param: str | None = None, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.param = param
        if retry_after is not None:
            self.retry_after = retry_after

    def to_dict(self) -> dict[str, Any]:
        """OpenAI's error object."""
        body = {"message": str(self), "type": self.type, "code": self.code, "param": self.param}
        return {"error": body}


class InvalidRequest(RequestError):
    """The body is malformed, or asks for what is not supported."""

    status = 400
    type = "invalid_request_error"
    code = "invalid_value"


class UnknownParameter(InvalidRequest):
    """The body has a field that this worker does not know."""

    code = "unknown_parameter"


class MissingParameter(InvalidRequest):
    """A required field is missing."""

    code = "missing_required_parameter"


class ContextLengthExceeded(InvalidRequest):
    """Prompt and completion do not fit; the text names both lengths and the limit."""

    code = "context_length_exceeded"


class GrammarTooComplex(InvalidRequest):
    """A grammar that was compiled and could not be followed to its end; the text names its field."""

    code = "grammar_too_complex"


class AdapterRefused(InvalidRequest):
    """The adapter's files cannot be served with this base model; the text names the tensor or field."""

    code = "adapter_refused"


class EmbedsOnly(InvalidRequest):
    """The adapter was trained for embeddings and cannot generate."""

    code = "adapter_embeds_only"


class Unauthorized(RequestError):
    """The fleet token is missing or wrong."""

    status = 401
    type = "authentication_error"
    code = "invalid_fleet_token"


class ModelNotFound(RequestError):
    """The request names a model that this worker does not serve."""

    status = 404
    type = "invalid_request_error"
    code = "model_not_found"


class AdapterNotFound(ModelNotFound):
    """The request names an adapter that is not registered."""


class AdapterFilesNotFound(RequestError):
    """There is no folder at the adapter's path."""

    status = 404
    type = "invalid_request_error"
    code = "adapter_files_not_found"


class RouteNotFound(RequestError):
    """No such path."""

    status = 404
    type = "invalid_request_error"
    code = "not_found"


class MethodNotAllowed(RequestError):
    """The path exists, the method does not."""

    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"


class BodyTimedOut(RequestError):
    """The request's body did not come as its head promised."""

    status = 408
    type = "invalid_request_error"
    code = "request_timeout"


class BodyTooLarge(RequestError):
    """The request body is over the limit."""

    status = 413
    type = "invalid_request_error"
    code = "request_too_large"


class GenerationFailed(RequestError):
    """The model could not go on with this request (non-finite logits, say), or the engine broke."""

    code = "generation_failed"


class GenerationTimedOut(RequestError):
    """The request's own time limit passed while its tokens were coming."""

    status = 504
    type = "timeout_error"
    code = "timeout"


class TooManyRequests(RequestError):
    """One tenant's requests fill its part of the queue."""

    status = 429
    type = "rate_limit_error"
    code = "tenant_queue_full"
    retry_after = 1


class Unavailable(RequestError):
    """The worker is full or stopping; another copy, or a later try, may serve the request."""

    status = 503
    code = "unavailable"
    retry_after = 1


class AdapterUnavailable(Unavailable):
    """The adapter's files could not be fetched."""

    code = "adapter_unavailable"


class DeadlineExceeded(Unavailable):
    """The request's own time limit passed before its first token."""

    code = "deadline_exceeded"
