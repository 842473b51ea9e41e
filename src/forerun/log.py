"""The server's log on stderr: text lines, or one JSON object per line. It holds no prompt and no answer.

Knows no request and no route; the code that serves a request sets `request_id`.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

# Id of the request being served, "" for none. Each thread and each asyncio task has its own.
request_id: ContextVar[str] = ContextVar("request_id", default="")


SHORT_ID = 12  # characters of an id, wherever people read it
_REQUEST = re.compile(rf"(?:[a-z]+[-_])?([0-9a-f]{{{SHORT_ID}}})[0-9a-f]{{{32 - SHORT_ID}}}(-\d+)?")


def short_id(id: str) -> str:
    """An id for people: the first characters. A request's without the prefix of its dialect, but with the number of its choice."""
    request = _REQUEST.fullmatch(id)
    return request[1] + (request[2] or "") if request else id[:SHORT_ID]


class TextFormatter(logging.Formatter):
    """For people: timestamp, level unless INFO, short request id, message."""

    def format(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        request = f"[{short_id(request_id.get())}] " if request_id.get() else ""
        text = f"{timestamp(record)} {level}{request}{record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class JsonFormatter(logging.Formatter):
    """For programs. The fields request_id and exception are present only if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {"time": timestamp(record), "level": record.levelname.lower(), "logger": record.name}
        fields["message"] = record.getMessage()
        if request_id.get():
            fields["request_id"] = request_id.get()
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def set_up(log_format: Literal["text", "json"]) -> None:
    """Log to stderr from now on: forerun's loggers from INFO, libraries' from WARNING. Call once per process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("forerun").setLevel(logging.INFO)


def timestamp(record: logging.LogRecord) -> str:
    """When the record was logged: UTC, ISO 8601, milliseconds."""
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
