"""What a server tells of itself while it runs, on stderr: lines for people, or a JSON object a line. Nothing that was asked or answered.

Knows no request and no route; whoever serves one says which it is.
"""

from __future__ import annotations

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

# The request that is being served, "" for none. A thread, and a task of an event loop, has its own.
request_id: ContextVar[str] = ContextVar("request_id", default="")


class Lines(logging.Formatter):
    """For people: moment, level if it is not INFO, request, words."""

    def format(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        request = f"[{request_id.get()}] " if request_id.get() else ""
        text = f"{moment(record)} {level}{request}{record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class Json(logging.Formatter):
    """For programs. request_id and exception are there if there are any."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {"time": moment(record), "level": record.levelname.lower(), "logger": record.name}
        told["message"] = record.getMessage()
        if request_id.get():
            told["request_id"] = request_id.get()
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told, ensure_ascii=False)


def set_up(log_format: Literal["text", "json"]) -> None:
    """From now on all is told on stderr: forerun's own from INFO on, that of libraries from WARNING on. Call once, in a program."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Json() if log_format == "json" else Lines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("forerun").setLevel(logging.INFO)


def moment(record: logging.LogRecord) -> str:
    """When it was told: UTC, ISO 8601, milliseconds."""
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
