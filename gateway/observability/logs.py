"""How the gateway's process writes logs: a JSON object a line, or text for people.

Prompts, answers and keys stand in no line. An exception that a request met is told by its type and where it
arose (`stack`), not by its text, which may hold what the client sent.
"""

from __future__ import annotations

import logging
import sys
import time
import traceback
from typing import Any, Final, Literal

import orjson

Format = Literal["json", "text"]
_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """A record as one line: time, level, logger, message, and what it brings as `extra={"fields": ...}`."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        value: dict[str, Any] = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            value["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(value, default=str).decode()


class TextFormatter(logging.Formatter):
    """For people: the same fields as key=value behind the message, empty ones left out."""

    def __init__(self) -> None:
        super().__init__(_TEXT)

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = getattr(record, "fields", {})
        told = "".join(f" {key}={value}" for key, value in fields.items() if value not in ("", None))
        return super().format(record) + told


def choose_format(setting: str) -> Format:
    """`auto` means text where a person looks on, which is at a terminal."""
    if setting == "auto":
        return "text" if sys.stderr.isatty() else "json"
    return "text" if setting == "text" else "json"


def configuration(setting: str, level: str) -> dict[str, Any]:
    """For `logging.config.dictConfig`: everything goes to standard error."""
    chosen = TextFormatter if choose_format(setting) == "text" else JsonFormatter
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"chosen": {"()": chosen}},
        "handlers": {
            "stderr": {"class": "logging.StreamHandler", "formatter": "chosen", "stream": "ext://sys.stderr"}
        },
        "root": {"handlers": ["stderr"], "level": level},
    }


def stack(error: BaseException) -> dict[str, Any]:
    """An exception without its text: its type, and where it was raised and passed."""
    frames = [
        f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)
    ]
    told: dict[str, Any] = {"error": type(error).__qualname__, "stack": frames}
    if (cause := error.__cause__ or error.__context__) is not None:
        told["cause"] = stack(cause)
    return told
