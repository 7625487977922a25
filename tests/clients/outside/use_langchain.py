"""langchain-openai against the gateway."""

from __future__ import annotations

from typing import Any, Literal

from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, SecretStr

from tests.clients.outside.requests_and_results import ACME, SLOW, TEXTS, TINY, TOOL, WRONG, failure, tell


class Verdict(BaseModel):
    """An answer."""

    answer: Literal["yes", "no"]
    sure: bool


def main(url: str) -> dict[str, Any]:
    def chat(model: str = "bot", key: str = ACME, **ask: Any) -> Any:
        ask = {"temperature": 0, "max_tokens": 20, "max_retries": 0} | ask
        return ChatOpenAI(model=model, base_url=url, api_key=SecretStr(key), **ask)

    whole = chat().invoke("hi")
    chunks = list(chat(stream_usage=True).stream("hi"))
    called = chat("tiny", max_tokens=300).bind_tools([TOOL], tool_choice="any", parallel_tool_calls=False)
    [call] = called.invoke("hi").tool_calls
    structured = [
        chat(max_tokens=300).with_structured_output(Verdict, method=method).invoke("hi")
        for method in ("json_schema", "function_calling")
    ]
    # Without the check of lengths, which counts with tokenizers of OpenAI's that it downloads.
    embeddings = OpenAIEmbeddings(
        model="tiny", base_url=url, api_key=SecretStr(ACME), check_embedding_ctx_length=False
    )
    response = chat(use_responses_api=True).invoke("hi")
    chat(key=SLOW).invoke("hi")
    return {
        "text": whole.content,
        "usage": whole.usage_metadata["total_tokens"],
        "streamed": "".join(str(chunk.content) for chunk in chunks),
        "streamed_usage": [chunk.usage_metadata["total_tokens"] for chunk in chunks if chunk.usage_metadata],
        "arguments": call["args"],
        "structured": [verdict.model_dump() for verdict in structured],
        "embedded": [len(vector) for vector in embeddings.embed_documents(TEXTS)],
        "response": response.text if isinstance(response.text, str) else response.text(),
        "bad": failure(lambda: chat(temperature=3).invoke("hi")),
        "unknown": failure(lambda: chat("nobody").invoke("hi")),
        "stranger": failure(lambda: chat(key=WRONG).invoke("hi")),
        "refused": failure(lambda: chat(key=SLOW).invoke("hi")),
        "retried": chat(key=SLOW, max_retries=4).invoke("hi").usage_metadata["output_tokens"],
        "too_large": failure(lambda: chat(key=TINY, max_retries=4).invoke("hi")),
    }


if __name__ == "__main__":
    tell(main)
