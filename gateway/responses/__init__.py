"""OpenAI's Responses API, stateless, over a backend's chat completions."""

from gateway.responses.form import ResponsesForm
from gateway.responses.request import RESPONSES

__all__ = ["RESPONSES", "ResponsesForm"]
