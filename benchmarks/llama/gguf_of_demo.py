"""Writes a checkpoint of the bundled model's family as GGUF of llama.cpp's architecture qwen35, without the MTP head.

    PYTHONPATH=GGUF_PY python gguf_of_demo.py MODEL_FOLDER OUT.gguf f32|bf16|q8_0

llama.cpp wants value heads tiled over key heads instead of grouped by them, -exp(A_log), and gains with their 1. Source: its converter
(conversion/qwen.py at b11434).
"""

# mypy: ignore-errors
import json
import sys
from pathlib import Path

import numpy as np

import gguf

LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
WHOLE = {"embed_tokens.weight": "token_embd.weight", "norm.weight": "output_norm.weight"}


def main(folder: Path, out: Path, kind: str) -> None:
    config = json.loads((folder / "config.json").read_text())["text_config"]
    writer = gguf.GGUFWriter(str(out), "qwen35")
    write_fields(writer, config)
    write_vocabulary(writer, folder, config["vocab_size"])
    for name, value in tensors(folder):
        target = target_of(name)
        if target:
            add(writer, target, adapted(name, value, config), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_fields(w, c) -> None:
    w.add_name("forerun demo model")
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_key_length(c["head_dim"])
    w.add_value_length(c["head_dim"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_vocab_size(c["vocab_size"])
    rope = c["rope_parameters"]
    w.add_rope_freq_base(rope["rope_theta"])
    w.add_rope_dimension_count(int(c["head_dim"] * rope["partial_rotary_factor"]))
    w.add_rope_dimension_sections([*rope["mrope_section"], 0])
    w.add_ssm_conv_kernel(c["linear_conv_kernel_dim"])
    w.add_ssm_state_size(c["linear_key_head_dim"])
    w.add_ssm_group_count(c["linear_num_key_heads"])
    w.add_ssm_time_step_rank(c["linear_num_value_heads"])
    w.add_ssm_inner_size(c["linear_value_head_dim"] * c["linear_num_value_heads"])
    w.add_recurrent_layers([kind == "linear_attention" for kind in c["layer_types"]])
    w.add_full_attention_interval(c["full_attention_interval"])


def write_vocabulary(w, folder: Path, size: int) -> None:
    stored = json.loads((folder / "tokenizer.json").read_text())
    texts, types = [b"[PAD%d]" % i for i in range(size)], [gguf.TokenType.UNUSED] * size
    for text, id in stored["model"]["vocab"].items():
        texts[id], types[id] = text.encode(), gguf.TokenType.NORMAL
    for token in stored["added_tokens"]:
        kind = gguf.TokenType.CONTROL if token["special"] else gguf.TokenType.USER_DEFINED
        texts[token["id"]], types[token["id"]] = token["content"].encode(), kind
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen35")
    w.add_token_list(texts)
    w.add_token_types(types)
    w.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in stored["model"]["merges"]])
    ids = {token["content"]: token["id"] for token in stored["added_tokens"]}
    w.add_eos_token_id(ids["<|im_end|>"])
    w.add_pad_token_id(ids["<|endoftext|>"])
    w.add_add_bos_token(False)


def tensors(folder: Path):
    """Names and float32 values."""
    import mlx.core as mx

    for file in sorted(folder.glob("*.safetensors")):
        for name, value in mx.load(str(file)).items():
            yield name, np.array(value.astype(mx.float32))


def target_of(name: str) -> str:
    """The name in GGUF, "" for what is left out: the MTP head, and a head that is the embedding."""
    if name.startswith(("mtp.", "lm_head.")):
        return ""
    name = name.removeprefix("model.language_model.").removeprefix("model.")
    if name in WHOLE:
        return WHOLE[name]
    _, number, rest = name.split(".", 2)
    return f"blk.{number}.{LAYER[rest]}"


def adapted(name: str, x: np.ndarray, c) -> np.ndarray:
    """The values as llama.cpp has them."""
    keys, dim = c["linear_num_key_heads"], c["linear_value_head_dim"]
    share, first_value = c["linear_num_value_heads"] // keys, 2 * keys * c["linear_key_head_dim"]

    def tiled(x: np.ndarray, axis: int, width: int) -> np.ndarray:
        split = x.reshape(*x.shape[:axis], keys, share, width, *x.shape[axis + 1 :])
        return np.swapaxes(split, axis, axis + 1).reshape(x.shape)

    if ".conv1d." in name:
        x = x.reshape(x.shape[0], -1) if x.shape[1] == 1 else x[..., 0]
    if ".in_proj_qkv." in name or ".conv1d." in name:
        return np.concatenate([x[:first_value], tiled(x[first_value:], 0, dim)])
    if ".in_proj_z." in name:
        return tiled(x, 0, dim)
    if ".in_proj_a." in name or ".in_proj_b." in name or name.endswith(".dt_bias"):
        return tiled(x, 0, 1)
    if name.endswith(".A_log"):
        return -np.exp(tiled(x, 0, 1))
    if ".linear_attn.out_proj." in name:
        return tiled(x, 1, dim)
    return x + 1 if name.endswith("norm.weight") and ".linear_attn." not in name else x


def add(w, name: str, x: np.ndarray, kind: str) -> None:
    x = np.ascontiguousarray(x.astype(np.float32))
    types = {"bf16": gguf.GGMLQuantizationType.BF16, "q8_0": gguf.GGMLQuantizationType.Q8_0}
    if kind == "f32" or x.ndim < 2 or "conv1d" in name:
        return w.add_tensor(name, x)
    return w.add_tensor(name, gguf.quants.quantize(x, types[kind]), raw_dtype=types[kind])


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
