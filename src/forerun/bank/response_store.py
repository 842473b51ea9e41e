"""Stored responses of the Responses API, in the bank's index: bounded, expiring, and removed with their conversations.

A response is committed on return: it survives the process, and a power cut once the index's log is synced. May be called from any thread,
but waits for the disk: not on an event loop, nor on the thread that owns MLX. Knows no dialect: what it stores is JSON.
"""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections.abc import Callable

from forerun.bank.tier.disk import today
from forerun.bank.tier.index import Index
from forerun.bank.tier.responses import ResponseRow
from forerun.errors import BadRequestError, BankError, BankFullError, UnknownPreviousResponseError, UnknownResponseError
from forerun.values import StoredResponse

EXPIRY_S = 30 * 24 * 3600.0  # after the last use
MOST_BYTES = 64 << 20  # of one response, unpacked, and of the conversation that one continues
_NEVER_S = float("-inf")


class ResponseStore:
    """limit_bytes: of all responses, packed; the least recently used go first. reserve: makes sure that so many bytes may be added to the
    index now, or raises BankFullError.
    """

    def __init__(self, index: Index, limit_bytes: int, reserve: Callable[[int], None]) -> None:
        self._index, self._limit_bytes, self._reserve = index, limit_bytes, reserve
        self._removed_s: dict[tuple[str, str | None], float] = {}  # since when, Unix seconds, by tenant and session (None: all)
        self._lock = threading.Lock()

    def put(self, tenant: str, response: StoredResponse) -> None:
        """Store the response, unless its conversation was removed since it began. Raises BankError; then it is not stored."""
        with self._lock:
            self._put(tenant, response)

    def update(self, tenant: str, response: StoredResponse) -> None:
        """Replace the response of this id, if there still is one. Raises BankError; then the former one stays."""
        with self._lock:
            if self._index.has_response(tenant, response.id):
                self._put(tenant, response)

    def one(self, tenant: str, id: str) -> StoredResponse:
        """The tenant's response of this id. Raises UnknownResponseError, BankError."""
        row = self._index.response(tenant, id)
        if row is None:
            raise UnknownResponseError(id)
        return _response(row, _unpacked(row))

    def chain(self, tenant: str, id: str) -> list[StoredResponse]:
        """The response of this id and all that it continues, the first one first. Raises UnknownPreviousResponseError, which names the one
        that is missing, BadRequestError if they are too large, BankError.
        """
        found: dict[str, StoredResponse] = {}
        num_bytes = 0
        while id and id not in found:
            row = self._index.response(tenant, id)
            if row is None:
                raise UnknownPreviousResponseError(id)
            text = _unpacked(row)
            found[id], num_bytes, id = _response(row, text), num_bytes + len(text), row.previous
            if num_bytes > MOST_BYTES:
                message = f"the responses that it continues are larger than {MOST_BYTES} bytes"
                raise BadRequestError(message, param="previous_response_id", hint="start a new conversation")
        return list(reversed(found.values()))

    def remove(self, tenant: str, id: str) -> None:
        """Remove the response, and leave no trace of it in the folder. Raises UnknownResponseError, BankError."""
        with self._lock:
            if not self._index.has_response(tenant, id):
                raise UnknownResponseError(id)
            self._index.remove_response(tenant, id)
            self._index.truncate_log()

    def forget(self, tenant: str, session: str | None) -> None:
        """Remove the responses of a conversation, or of the tenant (None), also those whose requests run now. Raises BankError."""
        with self._lock:
            self._removed_s[tenant, session] = time.time()
            if session is None:
                self._index.remove_responses(tenant)
            else:
                self._index.remove_responses_of(tenant, session)

    def _put(self, tenant: str, response: StoredResponse) -> None:
        removed_s = max(self._removed_s.get((tenant, session), _NEVER_S) for session in (None, response.session))
        if response.begun_s <= removed_s:
            return
        data, now_s = _packed(response, self._limit_bytes), time.time()
        self._index.remove_responses_before(now_s - EXPIRY_S)
        self._index.touch_responses(tenant, response.previous, now_s)
        self._reserve(len(data))
        while self._index.response_bytes + len(data) > self._limit_bytes:
            self._index.remove_least_used_response()
        self._index.add_response(ResponseRow(tenant, response.id, response.previous, response.session, data), now_s, today())


def _packed(response: StoredResponse, limit_bytes: int) -> bytes:
    """The data of its row. Raises BankFullError."""
    value = [response.begun_s, response.body, response.input]
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    data = zlib.compress(text, 1)
    if len(text) > MOST_BYTES or len(data) > limit_bytes:
        raise BankFullError(f"a response of {len(text)} bytes ({len(data)} packed) is too large", reason="size")
    return data


def _unpacked(row: ResponseRow) -> bytes:
    """The text of its data. Raises BankError."""
    try:
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(row.data, MOST_BYTES)
    except zlib.error as error:
        raise BankError(f"the response {row.id!r} is damaged: {error}") from error
    if not unpacking.eof:
        raise BankError(f"the response {row.id!r} is damaged: it is cut off, or too large")
    return text


def _response(row: ResponseRow, text: bytes) -> StoredResponse:
    begun_s, body, items = json.loads(text)
    return StoredResponse(row.id, row.previous, row.session, begun_s, body, tuple(items))
