"""Tiny random models of the families, as HF folders: the same bytes for the same case.

CASES names every family and every switch of its config. A case is written by `write_case`, run by
us, by mlx-lm (tests/reference/families.py) and by transformers (torch_logits.py in this folder,
which leaves goldens here). Weights are drawn tensor by tensor from the case's name and the tensor's
name, so that no tensor depends on another.
"""
import hashlib
import json
import pathlib

import numpy as np
from safetensors.numpy import save_file

import moe_cases

VOCAB = 40
PROMPT = 96  # crosses the pages of 64 tokens and every window below
HERE = pathlib.Path(__file__).resolve().parent

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LINEAR = {"rope_type": "linear", "factor": 4.0}

BASE = {"vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 256, "tie_word_embeddings": False, "torch_dtype": "float32",
        "bos_token_id": 2, "eos_token_id": 1, "rope_theta": 10000.0}
SILU = {**BASE, "hidden_act": "silu"}


def family(name, base, **keys):
    return {"model_type": name, **base, **keys}


# name: (config, mlx-lm is a reference for it). Where it is not, docs/families.md says why.
CASES = {
    "llama": (family("llama", SILU), True),
    "llama-biases": (family("llama", SILU, attention_bias=True, mlp_bias=True), True),
    "llama-tied": (family("llama", SILU, tie_word_embeddings=True), True),
    "llama-linear": (family("llama", SILU, rope_scaling=LINEAR), True),
    "llama-llama3": (family("llama", SILU, rope_scaling=LLAMA3), True),
    "llama-yarn": (family("llama", SILU, rope_scaling=YARN), True),
    "llama-yarn-exact": (family("llama", SILU, rope_scaling={**YARN, "truncate": False}), False),
    "llama-yarn-factor": (family("llama", SILU, rope_scaling={**YARN, "attention_factor": 0.8}),
                          False),
    "mistral": (family("mistral", SILU, sliding_window=None), True),
    "mistral-window": (family("mistral", SILU, sliding_window=40), False),
    "mistral-wide-heads": (family("mistral", SILU, sliding_window=None, head_dim=24), True),
    "qwen2": (family("qwen2", SILU, use_sliding_window=False, sliding_window=40), True),
    "qwen2-tied": (family("qwen2", SILU, tie_word_embeddings=True), True),
    "qwen2-window": (family("qwen2", SILU, use_sliding_window=True, sliding_window=40,
                            max_window_layers=1), False),
    "qwen2-yarn": (family("qwen2", SILU, rope_scaling=YARN), True),
    "qwen3": (family("qwen3", SILU), True),
    "qwen3-tied": (family("qwen3", SILU, tie_word_embeddings=True), True),
    "qwen3-biases": (family("qwen3", SILU, attention_bias=True), False),
    "qwen3-wide-heads": (family("qwen3", SILU, head_dim=32), True),
    "qwen3-window": (family("qwen3", SILU, use_sliding_window=True, sliding_window=33,
                            max_window_layers=2), False),
    "qwen3-yarn": (family("qwen3", SILU, rope_scaling=YARN), True),
} | moe_cases.cases(SILU)


def text_config(config):
    return config.get("text_config", config)


def layer_tensors(c, i):
    """Names and shapes of one layer of a dense decoder."""
    kind = c["model_type"]
    gemma = kind.startswith("gemma")
    d, ff, hd = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * hd, c["num_key_value_heads"] * hd
    out = {"self_attn.q_proj.weight": (q, d), "self_attn.k_proj.weight": (kv, d),
           "self_attn.v_proj.weight": (kv, d), "self_attn.o_proj.weight": (d, q),
           "mlp.gate_proj.weight": (ff, d), "mlp.up_proj.weight": (ff, d),
           "mlp.down_proj.weight": (d, ff), "input_layernorm.weight": (d,),
           "post_attention_layernorm.weight": (d,)}
    if kind == "qwen2" or c.get("attention_bias"):
        out |= {"self_attn.q_proj.bias": (q,), "self_attn.k_proj.bias": (kv,),
                "self_attn.v_proj.bias": (kv,)}
    if c.get("attention_bias"):
        out["self_attn.o_proj.bias"] = (d,)
    if c.get("mlp_bias"):
        out |= {"mlp.gate_proj.bias": (ff,), "mlp.up_proj.bias": (ff,), "mlp.down_proj.bias": (d,)}
    if moe_cases.is_sparse(c, i):
        out = {n: s for n, s in out.items() if not n.startswith("mlp.")} | moe_cases.tensors(c)
    if kind in ("qwen3", "qwen3_moe", "gemma3_text"):
        out |= {"self_attn.q_norm.weight": (hd,), "self_attn.k_norm.weight": (hd,)}
    if gemma:
        out |= {"pre_feedforward_layernorm.weight": (d,),
                "post_feedforward_layernorm.weight": (d,)}
    return {f"model.layers.{i}.{name}": shape for name, shape in out.items()}


def text_tensors(c):
    d = c["hidden_size"]
    out = {"model.embed_tokens.weight": (c["vocab_size"], d), "model.norm.weight": (d,)}
    if not c["tie_word_embeddings"]:
        out["lm_head.weight"] = (c["vocab_size"], d)
    for i in range(c["num_hidden_layers"]):
        out |= layer_tensors(c, i)
    return out


def all_tensors(config):
    """Stored names and shapes."""
    return text_tensors(config)


def draw(case, name, shape, config):
    """Float32 values: matrices of unit gain, norms about the value that leaves a row as it is."""
    seed = int.from_bytes(hashlib.sha256(f"{case}/{name}".encode()).digest()[:8], "little")
    unit = np.random.Generator(np.random.PCG64(seed)).random(shape) * 2 - 1
    if name.endswith("norm.weight"):
        plus_one = text_config(config)["model_type"] in ("gemma2", "gemma3_text")
        # On a grid, so that a GGUF's 1 + w gives w back.
        value = (0 if plus_one else 1) + np.round(0.3 * unit * 4096) / 4096
    elif len(shape) == 1:
        value = 0.3 * unit
    else:
        value = 2.4 / np.sqrt(shape[-1]) * unit
    return value.astype(np.float32)


def prompt(case):
    seed = int.from_bytes(hashlib.sha256(case.encode()).digest()[:8], "little")
    return (np.random.Generator(np.random.PCG64(seed)).random(PROMPT) * VOCAB).astype(int).tolist()


def write_case(case, folder, config=None, form=None):
    """The folder of a case, with experts in another form than HF's where one is named; returns the
    SHA-256 of its weights in the order of names."""
    config = config or CASES[case][0]
    folder.mkdir()
    tensors = {n: draw(case, n, s, config) for n, s in all_tensors(config).items()}
    if form:
        tensors = moe_cases.restore(text_config(config), tensors, form)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + b"\n" + tensors[name].tobytes())
    return digest.hexdigest()


def golden_path(case):
    return HERE / "golden" / f"{case}.npy"


def digests():
    path = HERE / "golden" / "weights.json"
    return json.loads(path.read_text()) if path.exists() else {}


# ---- other spellings and containers of the same model ------------------------------------------

def new_spelling(config):
    """The config with rope_parameters in place of rope_theta and rope_scaling."""
    c = json.loads(json.dumps(config))
    inner = text_config(c)
    rope = {"rope_type": "default", **(inner.pop("rope_scaling", None) or {})}
    rope["rope_theta"] = inner.pop("rope_theta")
    inner["rope_parameters"] = rope
    return c


GGUF_ARCH = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3",
             **moe_cases.GGUF_ARCH}
GGUF_STEMS = moe_cases.GGUF_STEMS | {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm"}


def gguf_name(arch, name):
    top = {"model.embed_tokens.weight": "token_embd.weight", "lm_head.weight": "output.weight",
           "model.norm.weight": "output_norm.weight"}
    if name in top:
        return top[name]
    layer, rest = name.removeprefix("model.layers.").split(".", 1)
    stem, end = rest.rsplit(".", 1)
    gemma = {"post_attention_layernorm": "post_attention_norm",
             "pre_feedforward_layernorm": "ffn_norm",
             "post_feedforward_layernorm": "post_ffw_norm"}
    plain = {"post_attention_layernorm": "ffn_norm"}
    stems = GGUF_STEMS | (gemma if arch.startswith("gemma") else plain)
    return f"blk.{layer}.{stems[stem]}.{end}"


def interleave(value, heads):
    """Rope rows in the order of the architecture "llama"."""
    shape = value.shape
    return value.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def has_gguf(config):
    """GGUF cannot say everything: no biases or windows for llama, only some rope kinds."""
    c = text_config(config)
    rope = c.get("rope_scaling") or {}
    return c["model_type"] in GGUF_ARCH and not c.get("mlp_bias") and moe_cases.fits_gguf(c) and \
        not (c["model_type"] in ("llama", "mistral") and c.get("attention_bias")) and \
        not (c["model_type"] in ("mistral",) and c.get("sliding_window")) and \
        not c.get("use_sliding_window") and rope.get("rope_type") in (None, "linear", "yarn") and \
        rope.get("truncate", True) and "attention_factor" not in rope


def write_gguf(case, path):
    import gguf

    config = CASES[case][0]
    c = text_config(config)
    arch = GGUF_ARCH[c["model_type"]]
    w = gguf.GGUFWriter(path, arch)
    w.add_embedding_length(c["hidden_size"])
    w.add_block_count(c["num_hidden_layers"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_key_length(c["head_dim"])
    w.add_value_length(c["head_dim"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_rope_freq_base(c["rope_theta"])
    w.add_rope_dimension_count(c["head_dim"])
    moe_cases.add_gguf_keys(w, c)
    rope = c.get("rope_scaling")
    if rope:
        w.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        w.add_rope_scaling_factor(rope["factor"])
        if "original_max_position_embeddings" in rope:
            w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    values = {n: draw(case, n, s, config) for n, s in text_tensors(c).items()}
    if c["model_type"] in moe_cases.GGUF_ARCH:
        values = moe_cases.stack(c, values, "experts")
    for name, value in values.items():
        if arch == "llama" and ".q_proj." in name:
            value = interleave(value, c["num_attention_heads"])
        if arch == "llama" and ".k_proj." in name:
            value = interleave(value, c["num_key_value_heads"])
        if arch in ("gemma2", "gemma3") and name.endswith("norm.weight"):
            value = value + 1
        w.add_tensor(gguf_name(arch, name), value)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


# One case of each family, whose packed weights are held against their expansion.
PACKED = ["llama", "mistral-window", "qwen2", "qwen3", "mixtral", "qwen3-moe-step"]
