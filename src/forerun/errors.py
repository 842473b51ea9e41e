"""The exception tree of forerun. A message names what failed, where and with which value; a hint says what to do.

ForerunError
├── ConfigError           a setting is unknown, malformed or impossible here (exit code 2)
├── UnsupportedError      the machine or the model cannot do what was requested (exit code 3)
├── ModelError            a checkpoint is missing, damaged or does not fit its family
├── RequestError          the caller's request cannot be served as it stands (HTTP 4xx)
│   ├── BadRequestError       400  malformed or contradictory
│   ├── ContextLengthError    400  prompt and answer do not fit the context
│   ├── UnauthorisedError     401  key missing or wrong
│   ├── UnknownSessionError   404  there is no such conversation
│   ├── RateLimitError        429  more requests than the key may send; carries retry_after_s
│   └── BusyError             503  the queue is full; carries retry_after_s
├── BankError             stored state cannot be read or written
│   ├── BankFullError         a quota, the day's write budget or the disk is full; `reason` says which
│   ├── DamagedRecordError    a record fails its checksum, size or identity; it is quarantined by the bank
│   ├── BankGoneError         the folder was removed while the server was running
│   └── BankLockedError       the folder belongs to another running server
├── NumericsError         a step produced a non-finite number; the request ends and its cache is dropped
└── OutOfMemoryError      the device lacks memory for a step; the request ends and its cache is dropped
"""

from typing import Literal


class ForerunError(Exception):
    """What went wrong (`str(error)`), and what the user can do about it (`error.hint`, may be empty)."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class ConfigError(ForerunError):
    """A setting is unknown, malformed or impossible on this machine."""


class UnsupportedError(ForerunError):
    """The machine or the model cannot do what was requested."""


class ModelError(ForerunError):
    """A checkpoint is missing, damaged or does not fit its family."""


class RequestError(ForerunError):
    """A request cannot be served as it stands. param: the offending field, None if no single one is."""

    def __init__(self, message: str, *, hint: str = "", param: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.param = param


class BadRequestError(RequestError):
    """Malformed or contradictory."""


class ContextLengthError(RequestError):
    """A prompt of `tokens` (a number in words) leaves no room for an answer in the context."""

    def __init__(self, tokens: str, context_tokens: int) -> None:
        super().__init__(
            # Agents match these words and then shorten the conversation.
            f"prompt is too long: {tokens} tokens > {context_tokens - 1} maximum",
            hint="shorten the conversation, or start the server with a larger --context if the model allows it",
            param="messages",
        )


class UnauthorisedError(RequestError):
    """API key missing or wrong."""


class UnknownSessionError(RequestError):
    """There is no such conversation, or it belongs to another key."""

    def __init__(self, id: str) -> None:
        super().__init__(f"there is no conversation {id!r}", hint="GET /v1/forerun/sessions or `forerun bank ls` lists them")


class RateLimitError(RequestError):
    """The key has reached its request limit; retry after `retry_after_s` seconds."""

    def __init__(self, message: str, *, retry_after_s: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class BusyError(RequestError):
    """The queue is full, or the server is stopping; retry after `retry_after_s` seconds."""

    def __init__(self, message: str, *, retry_after_s: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class BankError(ForerunError):
    """Stored state cannot be read or written."""


FullReason = Literal["quota", "pinned conversations fill the quota", "size", "disk", "daily write budget"]


class BankFullError(BankError):
    """A record does not fit. reason: the quota, also one filled by pinned conversations alone; "size": larger than the quota; the disk; the
    day's write budget.
    """

    def __init__(self, message: str, *, reason: FullReason, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class DamagedRecordError(BankError):
    """A record fails its checksum, size or identity. key: the record's, "" if unknown."""

    def __init__(self, message: str, *, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class BankGoneError(BankError):
    """The bank's folder was removed while the server was running."""


class BankLockedError(BankError):
    """The bank's folder belongs to another running server."""


class NumericsError(ForerunError):
    """A step produced a non-finite number."""


class OutOfMemoryError(ForerunError):
    """The device lacks memory for a request."""
