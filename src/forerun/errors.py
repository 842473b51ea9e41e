"""The exception tree of forerun. A message names what failed, where and with which value; a hint says what to do."""

from typing import Literal


class ForerunError(Exception):
    """What went wrong (`str(error)`), and what the user can do about it (`error.hint`, may be empty)."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class ConfigError(ForerunError):
    """A setting is unknown, malformed or impossible on this machine (exit code 2)."""


class UnsupportedError(ForerunError):
    """The machine or the model cannot do what was requested (exit code 3)."""


class ModelError(ForerunError):
    """A checkpoint is missing, damaged or does not fit its family."""


class RequestError(ForerunError):
    """A request cannot be served as it stands (HTTP 4xx). param: the offending field, None if no single one is."""

    def __init__(self, message: str, *, hint: str = "", param: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.param = param


class BadRequestError(RequestError):
    """Malformed or contradictory (400)."""


class ContextLengthError(RequestError):
    """A prompt of `tokens` (a number in words) leaves no room for an answer in the context (400)."""

    def __init__(self, tokens: str, context_tokens: int) -> None:
        super().__init__(
            # Agents match these words and then shorten the conversation.
            f"prompt is too long: {tokens} tokens > {context_tokens - 1} maximum",
            hint="shorten the conversation, or start the server with a larger --context if the model allows it",
            param="messages",
        )


class UnauthorisedError(RequestError):
    """API key missing or wrong (401)."""


class UnknownSessionError(RequestError):
    """There is no such conversation, or it belongs to another key (404)."""

    def __init__(self, id: str) -> None:
        super().__init__(f"there is no conversation {id!r}", hint="GET /v1/forerun/sessions or `forerun bank ls` lists them")


class UnknownResponseError(RequestError):
    """There is no stored response of this id, or it belongs to another key (404)."""

    def __init__(self, id: str, *, param: str | None = None) -> None:
        hint = "it was deleted, has expired, was removed for newer ones, or its request set store to false"
        super().__init__(f"Response with id {id!r} not found.", hint=hint, param=param)


class UnknownPreviousResponseError(UnknownResponseError):
    """The response that a request continues, or one that that continues, is not stored (404). Agents match the code."""

    def __init__(self, id: str) -> None:
        super().__init__(id, param="previous_response_id")


class RateLimitError(RequestError):
    """The key has reached its request limit (429); retry after `retry_after_s` seconds."""

    def __init__(self, message: str, *, retry_after_s: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class BusyError(RequestError):
    """The queue is full, or the server is stopping (503); retry after `retry_after_s` seconds."""

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
    """A record fails its checksum, size or identity; the bank quarantines it. key: the record's, "" if unknown."""

    def __init__(self, message: str, *, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class BankGoneError(BankError):
    """The bank's folder was removed while the server was running."""


class BankLockedError(BankError):
    """The bank's folder belongs to another running server."""


class NumericsError(ForerunError):
    """A step produced a non-finite number; the request ends and its cache is dropped."""


class OutOfMemoryError(ForerunError):
    """The device lacks memory for a request, which ends; its cache is dropped."""
