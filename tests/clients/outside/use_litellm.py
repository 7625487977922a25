"""litellm's SDK against the gateway, configured as for any OpenAI-compatible server."""

from __future__ import annotations

import json
from typing import Any

import litellm

from tests.clients.outside.requests_and_results import (
    ACME,
    CITY,
    HI,
    SLOW,
    TEXTS,
    TINY,
    TOOL,
    WRONG,
    failure,
    tell,
)

FORMAT = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}


def main(url: str) -> dict[str, Any]:
    def chat(model: str = "bot", key: str = ACME, **ask: Any) -> Any:
        ask = {"messages": HI, "temperature": 0, "max_tokens": 20, "max_retries": 0} | ask
        return litellm.completion(f"openai/{model}", api_base=url, api_key=key, **ask)

    whole = chat()
    chunks = list(chat(stream=True, stream_options={"include_usage": True}))
    called = chat(
        "tiny", tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=300, stream=True
    )
    built = litellm.stream_chunk_builder(list(called), messages=HI)
    [call] = built.choices[0].message.tool_calls
    structured = chat(response_format=FORMAT, max_tokens=300)
    embedded = litellm.embedding("openai/tiny", input=TEXTS, api_base=url, api_key=ACME)
    response = litellm.responses(
        model="openai/bot", input="hi", temperature=0, max_output_tokens=20, api_base=url, api_key=ACME
    )
    chat(key=SLOW)
    return {
        "text": whole.choices[0].message.content,
        "usage": whole.usage.total_tokens,
        "streamed": "".join(c.choices[0].delta.content or "" for c in chunks if c.choices),
        "streamed_usage": [chunk.usage.total_tokens for chunk in chunks if getattr(chunk, "usage", None)],
        "arguments": json.loads(call.function.arguments),
        "structured": json.loads(structured.choices[0].message.content),
        "embedded": [len(item["embedding"]) for item in embedded.data],
        "response": response.output[0].content[0].text,
        "bad": failure(lambda: chat(temperature=3)),
        "unknown": failure(lambda: chat("nobody")),
        "stranger": failure(lambda: chat(key=WRONG)),
        "refused": failure(lambda: chat(key=SLOW)),
        "retried": chat(key=SLOW, max_retries=4).usage.completion_tokens,
        "too_large": failure(lambda: chat(key=TINY, max_retries=4)),
    }


if __name__ == "__main__":
    tell(main)
