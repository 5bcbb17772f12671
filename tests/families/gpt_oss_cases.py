"""Tiny random gpt-oss models for tests/reference/gpt_oss.py: every switch of the config, and every
form in which the experts are published.

Experts are drawn as mxfp4: codes, and scales near those of unit gain. So a form is the same model to
the bit: "hf" (blocks and scales), "float" (not quantized, input by output), "mlx" (gate and up
apart), and a GGUF.
"""
import hashlib
import json
import pathlib

import numpy as np
from safetensors.numpy import save_file

HERE = pathlib.Path(__file__).resolve().parent
VOCAB, PROMPT = 40, 96  # crosses the pages of 64 tokens, and the window
E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], np.float32)
YARN = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "original_max_position_embeddings": 32, "truncate": False}
BASE = {"model_type": "gpt_oss", "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "rms_norm_eps": 1e-5, "max_position_embeddings": 256, "tie_word_embeddings": False,
        "torch_dtype": "float32", "eos_token_id": 1, "hidden_act": "silu", "attention_bias": True,
        "num_local_experts": 5, "num_experts_per_tok": 3, "sliding_window": 40,
        "swiglu_limit": 7.0, "rope_theta": 150000.0, "rope_scaling": YARN,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
DEFAULT = {"rope_type": "default"}


def case(**keys):
    return {k: v for k, v in {**BASE, **keys}.items() if v is not ...}


# name: (config, mlx-lm is a reference for it). mlx-lm always cuts YaRN's bounds to whole pairs, has
# the clamp and the sigmoid's factor written in, and needs biases and an untied head.
CASES = {
    "gpt-oss": (case(), False),
    "gpt-oss-truncate": (case(rope_scaling={**YARN, "truncate": True}), True),
    "gpt-oss-no-truncate-key": (case(rope_scaling={k: v for k, v in YARN.items()
                                                   if k != "truncate"}), True),
    "gpt-oss-plain-rope": (case(rope_scaling=DEFAULT), True),
    "gpt-oss-no-rope-keys": (case(rope_scaling=..., rope_theta=...), False),
    "gpt-oss-limit": (case(swiglu_limit=1.5, swiglu_alpha=1.3, rope_scaling=DEFAULT), False),
    "gpt-oss-no-bias": (case(attention_bias=False, rope_scaling=DEFAULT), False),
    "gpt-oss-tied": (case(tie_word_embeddings=True), False),
    "gpt-oss-window": (case(sliding_window=17, rope_scaling=DEFAULT), True),
    "gpt-oss-layers": (case(layer_types=["full_attention", "sliding_attention", "full_attention"],
                            rope_scaling=DEFAULT), True),
    "gpt-oss-no-layers": (case(layer_types=...), False),
    "gpt-oss-one": (case(num_experts_per_tok=1, rope_scaling=DEFAULT), True),
    "gpt-oss-all": (case(num_experts_per_tok=5, rope_scaling=DEFAULT), True),
    "gpt-oss-wide-heads": (case(head_dim=32, num_key_value_heads=4, rope_scaling=DEFAULT), True),
}
FORMS = ["float", "mlx"]


def rng(case_name, tensor):
    seed = int.from_bytes(hashlib.sha256(f"{case_name}/{tensor}".encode()).digest()[:8], "little")
    return np.random.Generator(np.random.PCG64(seed))


def dense_tensors(c):
    d, hd = c["hidden_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * hd, c["num_key_value_heads"] * hd
    out = {"model.embed_tokens.weight": (c["vocab_size"], d), "model.norm.weight": (d,)}
    if not c["tie_word_embeddings"]:
        out["lm_head.weight"] = (c["vocab_size"], d)
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        out |= {p + "input_layernorm.weight": (d,), p + "post_attention_layernorm.weight": (d,),
                p + "self_attn.sinks": (c["num_attention_heads"],),
                p + "mlp.router.weight": (c["num_local_experts"], d),
                p + "mlp.router.bias": (c["num_local_experts"],)}
        for name, rows, k in (("q", q, d), ("k", kv, d), ("v", kv, d), ("o", d, q)):
            out[f"{p}self_attn.{name}_proj.weight"] = (rows, k)
            if c["attention_bias"]:
                out[f"{p}self_attn.{name}_proj.bias"] = (rows,)
    return out


def draw_dense(name, tensor, shape):
    unit = rng(name, tensor).random(shape) * 2 - 1
    if "norm.weight" in tensor:
        value = 1 + 0.3 * unit
    elif tensor.endswith("sinks"):
        value = 2 * unit
    elif len(shape) == 1:
        value = 0.3 * unit
    else:
        value = 2.4 / np.sqrt(shape[-1]) * unit
    return value.astype(np.float32)


def experts(name, c):
    """(prefix, codes [E, rows, K], scales [E, rows, K/32], bias [E, rows]) of gate_up and down."""
    n, d, ff = c["num_local_experts"], c["hidden_size"], c["intermediate_size"]
    for i in range(c["num_hidden_layers"]):
        for part, rows, k in (("gate_up_proj", 2 * ff, d), ("down_proj", d, ff)):
            p = f"model.layers.{i}.mlp.experts.{part}"
            r = rng(name, p)
            codes = r.integers(0, 16, (n, rows, k), dtype=np.uint8)
            codes[codes == 8] = 0  # GGUF readers have no negative zero
            scales = r.integers(121, 125, (n, rows, k // 32), dtype=np.uint8)
            # Some sums of gate and up pass the clamp at 7.
            bias = ((4 if rows != d else 0.3) * (r.random((n, rows)) * 2 - 1)).astype(np.float32)
            yield p, codes, scales, bias


def packed(codes):
    """Bytes of pairs of codes, the first in the low bits."""
    return codes[..., 0::2] | codes[..., 1::2] << 4


def expanded(codes, scales):
    return E2M1[codes] * np.exp2(scales.astype(np.float32).repeat(32, -1) - 127)


def expert_tensors(name, c, form):
    out = {}
    for p, codes, scales, bias in experts(name, c):
        parts = {p: slice(None)}
        if form == "mlx" and p.endswith("gate_up_proj"):
            parts = {p.replace("gate_up", "gate"): slice(0, None, 2),
                     p.replace("gate_up", "up"): slice(1, None, 2)}
        for q, rows in parts.items():
            if form == "hf":
                blocks = packed(codes[:, rows])
                out[q + "_blocks"] = blocks.reshape(*blocks.shape[:2], -1, 16)
                out[q + "_scales"] = scales[:, rows]
                out[q + "_bias"] = bias
            elif form == "float":
                out[q] = np.ascontiguousarray(expanded(codes, scales).swapaxes(1, 2))
                out[q + "_bias"] = bias
            else:
                out[q + ".weight"] = np.ascontiguousarray(packed(codes[:, rows])).view(np.uint32)
                out[q + ".scales"] = np.ascontiguousarray(scales[:, rows])
                out[q + ".bias"] = np.ascontiguousarray(bias[:, rows])
    return out


def tensors(name, c, form):
    return {t: draw_dense(name, t, s) for t, s in dense_tensors(c).items()} | \
        expert_tensors(name, c, form)


def write(name, folder, form, config=None):
    """The folder of a case in a form; returns the SHA-256 of its tensors in the order of names."""
    c = config or CASES[name][0]
    folder.mkdir()
    out = tensors(name, c, form)
    extra = {"hf": {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": [
                 "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens",
                 "lm_head"]}},
             "mlx": {"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4"}},
             "float": {}}[form]
    save_file({k: np.ascontiguousarray(v) for k, v in out.items()}, folder / "model.safetensors",
              metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({**c, **extra}, indent=1) + "\n")
    digest = hashlib.sha256()
    for t in sorted(out):
        digest.update(t.encode() + b"\n" + np.ascontiguousarray(out[t]).tobytes())
    return digest.hexdigest()


def prompt(name):
    return (rng(name, "prompt").random(PROMPT) * VOCAB).astype(int).tolist()


def golden_path(name):
    return HERE / "golden" / f"{name}.npy"


DIGESTS = HERE / "golden" / "gpt-oss-weights.json"


def new_spelling(c):
    """The config with rope_parameters in place of rope_theta and rope_scaling."""
    c = dict(c)
    if "rope_theta" in c:
        c["rope_parameters"] = {**c.pop("rope_scaling"), "rope_theta": c.pop("rope_theta")}
    return c


# ---- GGUF: of the case whose config the format can say -------------------------------------------

def gguf_blocks(codes, scales):
    """[E, rows, K/32 * 17] bytes: the scale, then element j beside j + 16."""
    n, rows, k = codes.shape
    b = codes.reshape(n, rows, k // 32, 32)
    nibbles = b[..., :16] | b[..., 16:] << 4
    return np.concatenate([scales[..., None], nibbles], -1).reshape(n, rows, -1)


def write_gguf(name, path):
    import gguf

    c = CASES[name][0]
    w = gguf.GGUFWriter(path, "gpt-oss")
    w.add_embedding_length(c["hidden_size"])
    w.add_block_count(c["num_hidden_layers"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_expert_feed_forward_length(c["intermediate_size"])
    w.add_expert_count(c["num_local_experts"])
    w.add_expert_used_count(c["num_experts_per_tok"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_key_length(c["head_dim"])
    w.add_value_length(c["head_dim"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_sliding_window(c["sliding_window"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_rope_freq_base(c["rope_theta"])
    w.add_rope_dimension_count(c["head_dim"])
    w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    w.add_rope_scaling_factor(c["rope_scaling"]["factor"])
    w.add_rope_scaling_orig_ctx_len(c["rope_scaling"]["original_max_position_embeddings"])
    names = {"model.embed_tokens.weight": "token_embd.weight", "lm_head.weight": "output.weight",
             "model.norm.weight": "output_norm.weight"}
    stems = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
             "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
             "self_attn.sinks": "attn_sinks.weight", "mlp.router": "ffn_gate_inp",
             "input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm"}
    for t, shape in dense_tensors(c).items():
        if t not in names:
            layer, rest = t.removeprefix("model.layers.").split(".", 1)
            for hf, stem in stems.items():
                if rest.startswith(hf):
                    names[t] = f"blk.{layer}.{stem}{rest.removeprefix(hf)}"
        w.add_tensor(names[t], draw_dense(name, t, shape))
    for p, codes, scales, bias in experts(name, c):
        layer = p.split(".")[2]
        parts = {"down": slice(None)} if p.endswith("down_proj") else \
            {"gate": slice(0, None, 2), "up": slice(1, None, 2)}
        for part, rows in parts.items():
            stem = f"blk.{layer}.ffn_{part}_exps"
            w.add_tensor(stem + ".weight", gguf_blocks(codes[:, rows], scales[:, rows]),
                         raw_dtype=gguf.GGMLQuantizationType.MXFP4)
            w.add_tensor(stem + ".bias", np.ascontiguousarray(bias[:, rows]))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
