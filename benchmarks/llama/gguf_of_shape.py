"""Writes random weights of the shape of a checkpoint of the Qwen3.5 kind as GGUF: matrices in Q4_0, the rest in float32, no MTP head.

    PYTHONPATH=GGUF_PY python gguf_of_shape.py MODEL_FOLDER OUT.gguf

Blocks are random: an element is scale * (q - 8), q uniform in 0..15, so that its standard deviation is 4.61 * scale. The scale keeps the
variance of a product, as in a trained model: activations stay finite.
"""

# mypy: ignore-errors
import json
import sys
from pathlib import Path

import numpy as np
from gguf_of_demo import adapted, target_of, write_fields, write_vocabulary

import gguf
from on_gpu.shapes import FULL_ATTENTION_INTERVAL, _tensor_shapes

Q4_0 = gguf.GGMLQuantizationType.Q4_0
BLOCK_WEIGHTS, BLOCK_BYTES, POOL_BLOCKS = 32, 18, 1 << 18
DEVIATION = 4.61


def main(folder: Path, out: Path) -> None:
    config = completed(json.loads((folder / "config.json").read_text())["text_config"])
    writer, rng = gguf.GGUFWriter(str(out), "qwen35"), np.random.default_rng(1)
    write_fields(writer, config)
    write_vocabulary(writer, folder, config["vocab_size"])
    pool = rng.integers(0, 256, (POOL_BLOCKS, BLOCK_BYTES), dtype=np.uint8)
    for name, shape in _tensor_shapes(config):
        target = target_of(name)
        if target and len(shape) == 2:
            writer.add_tensor(target, blocks(pool, shape), raw_dtype=Q4_0)
        elif target:
            writer.add_tensor(target, np.ascontiguousarray(adapted(name, small(name, shape, rng), config).astype(np.float32)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def completed(config):
    """With what GGUF names and shapes leave out."""
    layers, pairs = config["num_hidden_layers"], int(config["head_dim"] * config["rope_parameters"]["partial_rotary_factor"]) // 2
    kinds = ["full_attention" if (i + 1) % FULL_ATTENTION_INTERVAL == 0 else "linear_attention" for i in range(layers)]
    sections = [(pairs + 2) // 3, (pairs + 1) // 3, pairs // 3]
    return config | {"layer_types": kinds, "rope_parameters": config["rope_parameters"] | {"mrope_section": sections}}


def blocks(pool: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """A matrix of Q4_0 blocks as bytes [outputs, inputs / 32 * 18], from the pool over and over."""
    outputs, inputs = shape
    made = np.resize(pool, (outputs * inputs // BLOCK_WEIGHTS, BLOCK_BYTES))
    made[:, :2] = np.array([inputs**-0.5 / DEVIATION], dtype=np.float16).view(np.uint8)
    return made.reshape(outputs, -1)


def small(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """A vector or a convolution."""
    low, high = (-4.0, 0.0) if name.endswith("A_log") else (-0.5, 0.5) if "conv1d" in name else (-0.1, 0.1)
    return rng.uniform(low, high, shape)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
