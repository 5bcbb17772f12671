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

import gemma4_cases
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
GELU = {**BASE, "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True, "query_pre_attn_scalar": 24, "sliding_window": 40}
GEMMA2 = {**GELU, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
GEMMA3 = {**GELU, "num_hidden_layers": 6, "rope_theta": 1e6, "rope_local_base_freq": 1000.0,
          "sliding_window_pattern": 3, "attn_logit_softcapping": None,
          "final_logit_softcapping": None}
GEMMA4 = {"vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
          "num_attention_heads": 4, "num_key_value_heads": 2, "num_global_key_value_heads": 1,
          "head_dim": 16, "global_head_dim": 32, "rms_norm_eps": 1e-6, "torch_dtype": "float32",
          "max_position_embeddings": 256, "tie_word_embeddings": True, "bos_token_id": 2,
          "eos_token_id": 1, "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 40,
          "attention_k_eq_v": True, "num_kv_shared_layers": 0, "use_double_wide_mlp": False,
          "hidden_size_per_layer_input": 0, "enable_moe_block": False,
          "final_logit_softcapping": 3.0, "layer_types": ["sliding_attention", "full_attention"] * 2,
          "rope_parameters": {
              "full_attention": {"rope_type": "proportional", "rope_theta": 1e5,
                                 "partial_rotary_factor": 0.25},
              "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0}}}
TYPES = ["full_attention", "sliding_attention", "sliding_attention"]


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
    # mlx-lm leaves Gemma 2's window out.
    "gemma2": (family("gemma2", GEMMA2), False),
    "gemma2-wide-window": (family("gemma2", GEMMA2, sliding_window=4096), True),
    "gemma2-uncapped": (family("gemma2", GEMMA2, attn_logit_softcapping=None,
                               final_logit_softcapping=None), False),
    "gemma2-types": (family("gemma2", GEMMA2, layer_types=TYPES), False),
    "gemma2-biases": (family("gemma2", GEMMA2, attention_bias=True), False),
    # HF scales embeddings by sqrt(hidden) in the weights' type: exact where the root is whole.
    "gemma3": (family("gemma3_text", GEMMA3), True),
    "gemma3-linear": (family("gemma3_text", GEMMA3, rope_scaling=LINEAR), True),
    "gemma3-types": (family("gemma3_text", GEMMA3, num_hidden_layers=3, layer_types=TYPES), False),
    "gemma3-capped": (family("gemma3_text", GEMMA3, final_logit_softcapping=3.0), False),
    "gemma3-untied": (family("gemma3_text", GEMMA3, tie_word_embeddings=False), True),
    "gemma4": (family("gemma4_text", GEMMA4), True),
    "gemma4-own-v": (family("gemma4_text", GEMMA4, attention_k_eq_v=False), True),
    "gemma4-uncapped": (family("gemma4_text", GEMMA4, final_logit_softcapping=None), False),
    "gemma4-turning": (family("gemma4_text", GEMMA4, rope_parameters={
        **GEMMA4["rope_parameters"], "full_attention": {
            "rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}), True),
    # mlx-lm has no text-only form of the unified model.
    "gemma4-unified": (family("gemma4_unified_text", GEMMA4), False),
    "gemma3-multimodal": ({"model_type": "gemma3", "vocab_size": VOCAB, "torch_dtype": "float32",
                           "text_config": family("gemma3_text", GEMMA3),
                           "vision_config": {"model_type": "siglip_vision_model",
                                             "hidden_size": 16, "intermediate_size": 16,
                                             "num_hidden_layers": 1, "num_attention_heads": 2,
                                             "image_size": 28, "patch_size": 14,
                                             "vision_use_head": False},
                           "mm_tokens_per_image": 4, "image_token_index": 39,
                           "boi_token_index": 38, "eoi_token_index": 37}, True),
} | gemma4_cases.cases(family, GEMMA4) | moe_cases.cases(SILU)


def text_config(config):
    return config.get("text_config", config)


def layer_tensors(c, i):
    """Names and shapes of one layer of a dense decoder."""
    kind = c["model_type"]
    gemma = kind.startswith("gemma")
    gemma4 = kind.startswith("gemma4")
    d, ff, hd, n_kv = (c[k] for k in ("hidden_size", "intermediate_size", "head_dim",
                                      "num_key_value_heads"))
    full = gemma4 and c["layer_types"][i] == "full_attention"
    shared = full and c["attention_k_eq_v"]
    if full:
        hd = c["global_head_dim"]
    if shared:
        n_kv = c["num_global_key_value_heads"]
    q, kv = c["num_attention_heads"] * hd, n_kv * hd
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
    if shared:
        out = {n: s for n, s in out.items() if not n.startswith("self_attn.v_proj.")}
    if kind in ("qwen3", "qwen3_moe", "gemma3_text") or gemma4:
        out |= {"self_attn.q_norm.weight": (hd,), "self_attn.k_norm.weight": (hd,)}
    if gemma:
        out |= {"pre_feedforward_layernorm.weight": (d,),
                "post_feedforward_layernorm.weight": (d,)}
    if gemma4:
        out = gemma4_cases.layer_tensors(c, i, out)
    return {f"model.layers.{i}.{name}": shape for name, shape in out.items()}


def text_tensors(c):
    d = c["hidden_size"]
    out = {"model.embed_tokens.weight": (c["vocab_size"], d), "model.norm.weight": (d,)}
    if not c["tie_word_embeddings"]:
        out["lm_head.weight"] = (c["vocab_size"], d)
    out |= gemma4_cases.outer_tensors(c)
    for i in range(c["num_hidden_layers"]):
        out |= layer_tensors(c, i)
    return out


def all_tensors(config):
    """Stored names and shapes."""
    if "text_config" not in config:
        return text_tensors(config)
    out = {f"language_model.{n}": s for n, s in text_tensors(config["text_config"]).items()}
    d, v = config["text_config"]["hidden_size"], config["vision_config"]
    w, ff, patch = v["hidden_size"], v["intermediate_size"], v["patch_size"]
    places = (v["image_size"] // patch) ** 2
    tower = {"embeddings.patch_embedding.weight": (w, 3, patch, patch),
             "embeddings.patch_embedding.bias": (w,), "embeddings.position_embedding.weight":
             (places, w), "post_layernorm.weight": (w,), "post_layernorm.bias": (w,)}
    for name in ("layer_norm1", "layer_norm2"):
        tower |= {f"encoder.layers.0.{name}.{x}": (w,) for x in ("weight", "bias")}
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        tower |= {f"encoder.layers.0.self_attn.{name}.weight": (w, w),
                  f"encoder.layers.0.self_attn.{name}.bias": (w,)}
    tower |= {"encoder.layers.0.mlp.fc1.weight": (ff, w), "encoder.layers.0.mlp.fc1.bias": (ff,),
              "encoder.layers.0.mlp.fc2.weight": (w, ff), "encoder.layers.0.mlp.fc2.bias": (w,)}
    out |= {f"vision_tower.vision_model.{n}": s for n, s in tower.items()}
    return out | {"multi_modal_projector.mm_input_projection_weight": (w, d),
                  "multi_modal_projector.mm_soft_emb_norm.weight": (w,)}


def draw(case, name, shape, config):
    """Float32 values: matrices of unit gain, norms about the value that leaves a row as it is."""
    seed = int.from_bytes(hashlib.sha256(f"{case}/{name}".encode()).digest()[:8], "little")
    unit = np.random.Generator(np.random.PCG64(seed)).random(shape) * 2 - 1
    value = gemma4_cases.value_of(name, shape, unit)
    if value is not None:
        return value.astype(np.float32)
    if name.endswith(("norm.weight", "norm_1.weight", "norm_2.weight")):
        plus_one = text_config(config)["model_type"] in ("gemma2", "gemma3_text")
        # On a grid, so that a GGUF's 1 + w gives w back.
        value = (0 if plus_one else 1) + np.round(0.3 * unit * 4096) / 4096
    elif name.endswith("layer_scalar"):
        value = 0.9 + 0.2 * unit
    elif len(shape) == 1:
        value = 0.3 * unit
    else:
        value = 2.4 / np.sqrt(shape[-1]) * unit
    return value.astype(np.float32)


def prompt(case):
    seed = int.from_bytes(hashlib.sha256(case.encode()).digest()[:8], "little")
    return (np.random.Generator(np.random.PCG64(seed)).random(PROMPT) * VOCAB).astype(int).tolist()


def wide(case):
    """The case with sums of several chunks and room for several splits of attention."""
    config = json.loads(json.dumps(CASES[case][0]))
    text_config(config).update(intermediate_size=544, max_position_embeddings=512)
    return config


def write_case(case, folder, config=None, base=None, form=None):
    """The folder of a case, its weights under another config.json if one is given, with
    experts in another form than HF's if one is named; returns the SHA-256 of the weights in the
    order of names."""
    base = base or CASES[case][0]
    folder.mkdir()
    tensors = {n: draw(case, n, s, base) for n, s in all_tensors(base).items()}
    if form:
        c = text_config(base)
        owner = gemma4_cases if gemma4_cases.is_gemma4(c) else moe_cases
        tensors = owner.restore(c, tensors, form)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config or base, indent=1) + "\n")
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
    if inner["model_type"].startswith("gemma4"):  # the two spellings of its full layers
        heads = {"head_dim": inner.pop("global_head_dim")}
        n_kv = inner.pop("num_global_key_value_heads")
        if inner["attention_k_eq_v"]:
            heads["num_key_value_heads"] = n_kv
        inner["per_layer_config"] = {str(i): heads for i, t in enumerate(inner["layer_types"])
                                     if t == "full_attention"}
        return c
    if "rope_local_base_freq" in inner:
        full = {"rope_type": "default", **(inner.pop("rope_scaling", None) or {}),
                "rope_theta": inner.pop("rope_theta")}
        sliding = {"rope_type": "default", "rope_theta": inner.pop("rope_local_base_freq")}
        inner["rope_parameters"] = {"full_attention": full, "sliding_attention": sliding}
        return c
    rope = {"rope_type": "default", **(inner.pop("rope_scaling", None) or {})}
    rope["rope_theta"] = inner.pop("rope_theta")
    inner["rope_parameters"] = rope
    return c


GGUF_ARCH = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3",
             "gemma2": "gemma2", "gemma3_text": "gemma3", "gemma4_text": "gemma4",
             **moe_cases.GGUF_ARCH}
GGUF_STEMS = moe_cases.GGUF_STEMS | gemma4_cases.GGUF_STEMS | {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm"}


def gguf_name(arch, name):
    top = {"model.embed_tokens.weight": "token_embd.weight", "lm_head.weight": "output.weight",
           "model.norm.weight": "output_norm.weight", **gemma4_cases.GGUF_TOP}
    if name in top:
        return top[name]
    layer, rest = name.removeprefix("model.layers.").split(".", 1)
    if rest in gemma4_cases.GGUF_WHOLE:
        return f"blk.{layer}.{gemma4_cases.GGUF_WHOLE[rest]}"
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
    return c["model_type"] in GGUF_ARCH and "text_config" not in config and \
        not c.get("mlp_bias") and moe_cases.fits_gguf(c) and \
        not (c["model_type"] == "gemma2" and c["attn_logit_softcapping"] is None) and \
        not (c["model_type"] in ("llama", "mistral") and c.get("attention_bias")) and \
        not (c["model_type"] in ("mistral",) and c.get("sliding_window")) and \
        not c.get("use_sliding_window") and rope.get("rope_type") in (None, "linear", "yarn") and \
        rope.get("truncate", True) and "attention_factor" not in rope


def write_gguf_plain(w, c, arch):
    import gguf

    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_key_length(c["head_dim"])
    w.add_value_length(c["head_dim"])
    w.add_rope_freq_base(c["rope_theta"])
    w.add_rope_dimension_count(c["head_dim"])
    if arch.startswith("gemma"):
        w.add_attention_scale(c["query_pre_attn_scalar"] ** -0.5)
        w.add_sliding_window(c["sliding_window"])
        for key, add in (("attn_logit_softcapping", w.add_attn_logit_softcapping),
                         ("final_logit_softcapping", w.add_final_logit_softcapping)):
            if c[key]:
                add(c[key])
        types = c.get("layer_types")
        period = 2 if arch == "gemma2" else c["sliding_window_pattern"]
        w.add_sliding_window_pattern([t == "sliding_attention" for t in types] if types else period)
    if arch == "gemma3":
        w.add_rope_freq_base_swa(c["rope_local_base_freq"])
    rope = c.get("rope_scaling")
    if rope:
        w.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        w.add_rope_scaling_factor(rope["factor"])
        if "original_max_position_embeddings" in rope:
            w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def write_gguf(case, path, encode=None, more=None):
    """encode: gives a tensor's data and GGML type by its GGUF name and its values. more: tensors by
    their GGUF names."""
    import gguf

    config = CASES[case][0]
    c = text_config(config)
    arch = GGUF_ARCH[c["model_type"]]
    w = gguf.GGUFWriter(path, arch)
    w.add_embedding_length(c["hidden_size"])
    w.add_block_count(c["num_hidden_layers"])
    w.add_feed_forward_length(gemma4_cases.gguf_widths(c) if arch == "gemma4"
                              else c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    if arch == "gemma4":
        gemma4_cases.write_gguf_keys(w, c)
    else:
        write_gguf_plain(w, c, arch)
        moe_cases.add_gguf_keys(w, c)
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
        name = gguf_name(arch, name)
        value, kind = encode(name, value) if encode else (value, None)
        w.add_tensor(name, value, raw_dtype=kind)
    for name, value in (more or {}).items():
        w.add_tensor(name, value)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()



# One case of each family, whose packed weights are held against their expansion.
PACKED = ["llama", "mistral-window", "qwen2", "qwen3", "gemma2", "gemma3", "gemma3-multimodal",
          "gemma4", "mixtral", "qwen3-moe-step"] + gemma4_cases.PACKED
FORMS = moe_cases.FORMS | gemma4_cases.FORMS
