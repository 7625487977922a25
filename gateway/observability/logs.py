"""Log formats of the gateway: a JSON object a line, or text for people.

No line contains prompts, answers or keys. A request's exception is logged by its type and stack (`stack`),
without its text, which may hold the client's data.
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
    """Formats a record as one line: time, level, logger, message, and `extra={"fields": ...}`."""

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
    """Formats a record for people: non-empty fields follow the message as key=value."""

    def __init__(self) -> None:
        super().__init__(_TEXT)

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = getattr(record, "fields", {})
        pairs = "".join(f" {key}={value}" for key, value in fields.items() if value not in ("", None))
        return super().format(record) + pairs


def choose_format(setting: str) -> Format:
    """Resolve `auto`: text at a terminal, else JSON."""
    if setting == "auto":
        return "text" if sys.stderr.isatty() else "json"
    return "text" if setting == "text" else "json"


def configuration(setting: str, level: str) -> dict[str, Any]:
    """Return the `logging.config.dictConfig` configuration; everything goes to standard error."""
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
    """Return an exception's type and stack, without its text."""
    frames = [
        f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)
    ]
    description: dict[str, Any] = {"error": type(error).__qualname__, "stack": frames}
    if (cause := error.__cause__ or error.__context__) is not None:
        description["cause"] = stack(cause)
    return description
