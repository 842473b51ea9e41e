"""Headers, and files that do not match their header."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import pytest

from forerun.errors import ModelError
from forerun.models.headers import read_headers


def written(path: Path) -> bytes:
    mx.save_safetensors(str(path), {"a": mx.zeros((2, 3), dtype=mx.bfloat16), "b": mx.zeros(5)}, metadata={"format": "mlx"})
    return path.read_bytes()


def with_header(path: Path, header: object, data: bytes) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_what_mlx_wrote(tmp_path: Path) -> None:
    written(tmp_path / "x.safetensors")
    found = read_headers(tmp_path / "x.safetensors")
    assert {name: (h.dtype, h.shape, h.num_bytes) for name, h in found.items()} == {"a": ("BF16", (2, 3), 12), "b": ("F32", (5,), 20)}


@pytest.mark.parametrize("left", [0, 7, 8, 40, -1])
def test_a_file_that_was_cut_off(tmp_path: Path, left: int) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(written(path)[:left])
    with pytest.raises(ModelError, match=r"x\.safetensors cannot be read") as caught:
        read_headers(path)
    assert "fetch it again" in caught.value.hint


def test_a_page_of_html(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_text("<!doctype html><title>Not found</title>")
    with pytest.raises(ModelError, match="a header of"):
        read_headers(tmp_path / "x.safetensors")


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ({"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}, "a has 8 bytes"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}, "a ends at byte 12 of 8"),
        ({"dtype": "F33", "shape": [2], "data_offsets": [0, 8]}, "F33"),
        ({"dtype": "F32", "shape": [2]}, "data_offsets"),
    ],
)
def test_a_header_that_does_not_fit(tmp_path: Path, entry: object, complaint: str) -> None:
    with_header(tmp_path / "x.safetensors", {"a": entry}, bytes(8))
    with pytest.raises(ModelError, match=complaint):
        read_headers(tmp_path / "x.safetensors")
