"""OpenAI's Responses API, stateless, over a backend's chat completions."""

from gateway.api.responses.dialect import ResponsesDialect
from gateway.api.responses.request import RESPONSES

__all__ = ["RESPONSES", "ResponsesDialect"]
