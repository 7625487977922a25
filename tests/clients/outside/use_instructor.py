"""instructor against the gateway: an object in each of its ways to ask for one, whole and growing."""

from __future__ import annotations

from typing import Any, Literal

import instructor
import openai
from pydantic import BaseModel, ConfigDict

from tests.clients.outside.requests_and_results import ACME, HI, SLOW, TINY, WRONG, failure, tell


class Verdict(BaseModel):
    """An answer. It is closed, so that a random model ends it."""

    model_config = ConfigDict(extra="forbid")
    answer: Literal["yes", "no"]
    sure: bool


MODES = (
    instructor.Mode.TOOLS,
    instructor.Mode.TOOLS_STRICT,
    instructor.Mode.JSON_SCHEMA,
    instructor.Mode.RESPONSES_TOOLS,
)


def main(url: str) -> dict[str, Any]:
    def ask(mode: instructor.Mode, key: str = ACME, retries: int = 0, **more: Any) -> Any:
        inner = openai.OpenAI(base_url=url, api_key=key, max_retries=retries)
        client = instructor.from_openai(inner, mode=mode)
        size = "max_output_tokens" if mode is instructor.Mode.RESPONSES_TOOLS else "max_tokens"
        told: dict[str, Any] = {"model": "tiny", "messages": HI, "temperature": 0, size: 300}
        told |= {"response_model": Verdict, "max_retries": 1}
        if more.pop("partial", False):
            return list(client.chat.completions.create_partial(**(told | more)))[-1]
        return client.chat.completions.create(**(told | more))

    def broken(key: str = ACME, retries: int = 0, **more: Any) -> dict[str, Any]:
        """Report the exception of the client that instructor wraps."""

        def unwrapped() -> None:
            try:
                ask(instructor.Mode.TOOLS, key, retries, **more)
            except Exception as error:
                cause: BaseException = error
                while cause.__cause__ is not None and not hasattr(cause, "status_code"):
                    cause = cause.__cause__
                raise cause from None

        return failure(unwrapped)

    whole = {mode.name: ask(mode).model_dump() for mode in MODES}
    growing = ask(instructor.Mode.JSON_SCHEMA, partial=True).model_dump()
    ask(instructor.Mode.TOOLS, SLOW)
    return {
        "whole": whole,
        "growing": growing,
        "bad": broken(temperature=3),
        "unknown": broken(model="nobody"),
        "stranger": broken(WRONG),
        "refused": broken(SLOW),
        "retried": ask(instructor.Mode.TOOLS, SLOW, 4).model_dump(),
        "too_large": broken(TINY, 4),
    }


if __name__ == "__main__":
    tell(main)
