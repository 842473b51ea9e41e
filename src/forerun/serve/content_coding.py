"""Content codings of a request's body: gzip, deflate and zstd, decoded in small pieces. Knows bytes and a header; knows no request."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator, Mapping

if sys.version_info >= (3, 14):
    from compression.zstd import DecompressionParameter, ZstdDecompressor, ZstdError
else:
    from backports.zstd import DecompressionParameter, ZstdDecompressor, ZstdError

PIECE_BYTES = 256 << 10
ZSTD_WINDOW_LOG = 23  # 8 MiB, the most that RFC 9659 allows on the web
ERRORS = (zlib.error, ZstdError)


class CodingError(ValueError):
    """The bytes are not what the header says."""


class Inflater:
    """zlib's decompressor with the interface of the standard library's others. window: zlib's `wbits`."""

    def __init__(self, window: int) -> None:
        self._zlib = zlib.decompressobj(window)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    @property
    def unused_data(self) -> bytes:
        return self._zlib.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        piece = self._zlib.decompress(self._zlib.unconsumed_tail + data, max_length)
        self.needs_input = not self._zlib.unconsumed_tail and len(piece) < max_length
        return piece


Decompressor = Inflater | ZstdDecompressor
# By name: one stream of it that starts with these bytes, and whether several may follow each other (RFC 1952, RFC 8878).
CODINGS: Mapping[str, tuple[Callable[[bytes], Decompressor], bool]] = {
    "gzip": (lambda _: Inflater(16 + zlib.MAX_WBITS), True),
    # RFC 9110 wants zlib's header, some clients leave it out; the first byte shows which.
    "deflate": (lambda data: Inflater(zlib.MAX_WBITS if data[0] & 0x0F == zlib.DEFLATED else -zlib.MAX_WBITS), False),
    "zstd": (lambda _: ZstdDecompressor(options={DecompressionParameter.window_log_max: ZSTD_WINDOW_LOG}), True),
}
ALIASES = {"x-gzip": "gzip"}


def codings_of(header: str) -> list[str]:
    """The names in a Content-Encoding header, in the order in which they were applied; without `identity`."""
    names = [each.strip().lower() for each in header.split(",")]
    return [ALIASES.get(name, name) for name in names if name not in ("", "identity")]


class Decoder:
    """Decodes a body of one coding, a name of CODINGS. Holds no more than a window and the bytes that were fed last."""

    def __init__(self, coding: str) -> None:
        self._coding = coding
        self._start, self._may_repeat = CODINGS[coding]
        self._stream: Decompressor | None = None

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """What these further bytes decode to, in pieces of at most PIECE_BYTES, some of them empty. Raises CodingError."""
        while data:
            stream = self._stream = self._next_stream(data)
            try:
                yield stream.decompress(data, PIECE_BYTES)
                while not stream.eof and not stream.needs_input:
                    yield stream.decompress(b"", PIECE_BYTES)
            except ERRORS as error:
                raise CodingError(f"it is not valid {self._coding}: {error}") from error
            data = stream.unused_data if stream.eof else b""

    def finish(self) -> None:
        """Raises CodingError unless the body is complete. No bytes at all are an empty body."""
        if self._stream is not None and not self._stream.eof:
            raise CodingError(f"its {self._coding} is cut off")

    def _next_stream(self, data: bytes) -> Decompressor:
        if self._stream is None or (self._stream.eof and self._may_repeat):
            return self._start(data)
        if self._stream.eof:
            raise CodingError(f"bytes follow the end of its {self._coding}")
        return self._stream
