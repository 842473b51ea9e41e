"""Bodies of each coding, cut anywhere; what is no such body; and how much memory a small body can take."""

from __future__ import annotations

import gzip
import random
import sys
import tracemalloc
import zlib
from collections.abc import Callable, Mapping

import pytest

from forerun.serve.content_coding import CODINGS, PIECE_BYTES, CodingError, Decoder, codings_of

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

TEXT = b'{"input": "hi"}' + random.Random(1).randbytes(100_000) + bytes(1_000_000)


def raw_deflate(data: bytes, level: int = 6) -> bytes:
    compressor = zlib.compressobj(level, wbits=-zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush()


def zstd_of_unknown_size(data: bytes) -> bytes:
    compressor = zstd.ZstdCompressor(options={zstd.CompressionParameter.checksum_flag: 1})
    return compressor.compress(data) + compressor.flush()


def zstd_with_window(window_log: int) -> bytes:
    options = {zstd.CompressionParameter.window_log: window_log, zstd.CompressionParameter.content_size_flag: 0}
    compressor = zstd.ZstdCompressor(options=options)
    return compressor.compress(b"{}") + compressor.flush()


FORMS: Mapping[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "gzip of several members": ("gzip", lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:])),
    "gzip without compression": ("gzip", lambda data: gzip.compress(data, 0)),
    "zlib": ("deflate", zlib.compress),
    "zlib, best": ("deflate", lambda data: zlib.compress(data, 9)),
    "raw deflate": ("deflate", raw_deflate),
    "raw deflate, stored": ("deflate", lambda data: raw_deflate(data, 0)),
    "zstd": ("zstd", zstd.compress),
    "zstd, best": ("zstd", lambda data: zstd.compress(data, 19)),
    "zstd of unknown size": ("zstd", zstd_of_unknown_size),
    "zstd of several frames": ("zstd", lambda data: zstd.compress(data[:9]) + b"\x50\x2a\x4d\x18\x02\0\0\0xx" + zstd.compress(data[9:])),
}


def decoded(coding: str, data: bytes, size: int) -> bytes:
    """The content of a body that is fed in parts of `size` bytes."""
    decoder, content = Decoder(coding), b""
    for start in range(0, len(data), size):
        for piece in decoder.pieces(data[start : start + size]):
            assert len(piece) <= PIECE_BYTES
            content += piece
    decoder.finish()
    return content


@pytest.mark.parametrize("size", [1, 2, 7, 4096, 1 << 30])
@pytest.mark.parametrize("form", FORMS)
def test_a_body_in_parts_of_any_size(form: str, size: int) -> None:
    coding, compress = FORMS[form]
    text = TEXT if size > 7 else TEXT[:2000]
    assert decoded(coding, compress(text), size) == text


@pytest.mark.parametrize("form", FORMS)
def test_every_truncated_body_is_noticed(form: str) -> None:
    coding, compress = FORMS[form]
    data = compress(b'{"input": "hi"}')
    whole = [stop for stop in range(1, len(data) + 1) if is_whole(coding, data[:stop])]
    assert whole[-1] == len(data)
    starts = {decoded(coding, data[:stop], 5) for stop in whole[:-1]}
    assert starts == ({b'{"input":'} if "several" in form else set()), "where a member ends, a body may"


def is_whole(coding: str, data: bytes) -> bool:
    try:
        decoded(coding, data, 5)
    except CodingError as error:
        return "cut off" not in str(error)
    return True


@pytest.mark.parametrize("tail", [b"x", b"{}", b"\0", b"\x28\xb5", b"\x1f"])
@pytest.mark.parametrize("form", FORMS)
def test_what_follows_the_end_is_noticed(form: str, tail: bytes) -> None:
    coding, compress = FORMS[form]
    for size in (1, 1 << 20):
        with pytest.raises(CodingError):
            decoded(coding, compress(b"{}") + tail, size)


@pytest.mark.parametrize("form", FORMS)
def test_another_coding_and_plain_json_are_noticed(form: str) -> None:
    coding, compress = FORMS[form]
    for other in CODINGS:
        if other != coding:
            with pytest.raises(CodingError):
                decoded(other, compress(b'{"input": "hi"}'), 1 << 20)
    with pytest.raises(CodingError, match=coding):
        decoded(coding, b'{"input": "hi"}', 1 << 20)


@pytest.mark.parametrize("coding", CODINGS)
def test_no_bytes_are_an_empty_body(coding: str) -> None:
    assert decoded(coding, b"", 1) == b""


@pytest.mark.parametrize("form", ["gzip", "zlib", "zstd of unknown size"])
def test_a_damaged_byte_is_noticed_by_the_checksum(form: str) -> None:
    coding, compress = FORMS[form]
    data = compress(TEXT)
    with pytest.raises(CodingError):
        decoded(coding, data[:-2] + bytes([data[-2] ^ 1]) + data[-1:], 1 << 20)


def test_windows_of_zstd_up_to_8_mib() -> None:
    assert decoded("zstd", zstd_with_window(23), 1 << 20) == b"{}"
    for window_log in (24, 27):
        with pytest.raises(CodingError, match="memory"):
            decoded("zstd", zstd_with_window(window_log), 1 << 20)


def zeros_of_zstd(num_bytes: int) -> bytes:
    """A frame of blocks that repeat one byte: 4 bytes each, the least for 128 KiB."""
    block = (1 << 1 | (128 << 10) << 3).to_bytes(3, "little") + b"\0"
    return b"\x28\xb5\x2f\xfd\x00\x58" + block * (num_bytes >> 17) + (1).to_bytes(3, "little")


@pytest.mark.parametrize(
    ("coding", "bomb"), [("gzip", gzip.compress(bytes(256 << 20), 1)), ("zstd", zeros_of_zstd(1 << 30))], ids=["gzip", "zstd"]
)
def test_a_small_body_takes_little_memory_however_much_it_comes_to(coding: str, bomb: bytes) -> None:
    tracemalloc.start()
    num_bytes = sum(map(len, Decoder(coding).pieces(bomb)))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert num_bytes >= 256 << 20
    assert peak_bytes < 4 * PIECE_BYTES + 2 * len(bomb)


@pytest.mark.parametrize(
    ("header", "codings"),
    [
        ("", []),
        ("identity", []),
        ("GZip", ["gzip"]),
        ("x-gzip", ["gzip"]),
        (" identity , zstd ", ["zstd"]),
        ("gzip, gzip", ["gzip", "gzip"]),
        ("br", ["br"]),
    ],
)
def test_the_names_in_a_header(header: str, codings: list[str]) -> None:
    assert codings_of(header) == codings
