"""Cases, tensors and storage forms of Gemma 4 with experts (26B-A4B), with inputs of each layer
(E2B, E4B) and with layers that share keys and values, for cases.py.

A folder of a case holds gate and up of all experts in one tensor, as HF writes them. `restore`
makes the other forms: "stacked" as mlx-lm saves experts, "spare" with the keys and values of
sharing layers that published files carry and nobody reads.
"""
import numpy as np

S, F = "sliding_attention", "full_attention"
EXPERTS = {"enable_moe_block": True, "num_experts": 6, "top_k_experts": 3,
           "moe_intermediate_size": 32}
# Widths whose root is whole: see docs/families.md.
INPUTS = {"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 40}
WIDE_INPUTS = INPUTS | {"hidden_size_per_layer_input": 64}
SHARED = {"num_hidden_layers": 6, "layer_types": [S, F] * 3, "num_kv_shared_layers": 2}
# Four sliding layers to a full one; both kinds look at a layer that is not their neighbour.
E2B = {"num_hidden_layers": 7, "layer_types": [S, S, F, S, S, S, F], "num_kv_shared_layers": 3,
       "use_double_wide_mlp": True, "attention_k_eq_v": False, **WIDE_INPUTS}
E4B = {"num_hidden_layers": 6, "layer_types": [S, S, F] * 2, "num_kv_shared_layers": 3,
       "attention_k_eq_v": False, **WIDE_INPUTS}

FORMS = {"gemma4-experts": ("stacked",), "gemma4-everything": ("stacked", "spare"),
         "gemma4-e2b": ("spare",), "gemma4-shared": ("spare",)}


def cases(family, base):
    """name: (config, mlx-lm is a reference for it)."""
    def text(**keys):
        return family("gemma4_text", base, **keys)

    return {
        "gemma4-experts": (text(**EXPERTS), True),
        "gemma4-experts-one": (text(**EXPERTS | {"top_k_experts": 1}), True),
        "gemma4-experts-all": (text(**EXPERTS | {"top_k_experts": 6}), True),
        "gemma4-experts-own-v": (text(**EXPERTS, attention_k_eq_v=False), True),
        "gemma4-shared": (text(**SHARED), True),
        "gemma4-shared-wide": (text(**SHARED, use_double_wide_mlp=True), True),
        # mlx-lm has no biases.
        "gemma4-shared-biases": (text(**SHARED, attention_bias=True), False),
        "gemma4-inputs": (text(**INPUTS), True),
        "gemma4-inputs-more": (text(**INPUTS | {"vocab_size_per_layer_input": 48}), True),
        # The factors before a norm show in its eps alone.
        "gemma4-inputs-eps": (text(**INPUTS, rms_norm_eps=0.02), True),
        "gemma4-e2b": (text(**E2B), True),
        "gemma4-e4b": (text(**E4B), True),
        "gemma4-everything": (text(**EXPERTS, **E2B), True),
        # mlx-lm has no text-only form of the unified model.
        "gemma4-unified-shared": (family("gemma4_unified_text", base, **SHARED,
                                         use_double_wide_mlp=True), False),
    }


# Held against their expansion, and fed in many ways.
PACKED = ["gemma4-experts", "gemma4-e2b"]


def is_gemma4(c):
    return c["model_type"].startswith("gemma4")


def shares(c, layer):
    return is_gemma4(c) and layer >= c["num_hidden_layers"] - c["num_kv_shared_layers"]


def layer_tensors(c, layer, out):
    """What stands in a layer: `out` is that of a dense one which makes its keys and values."""
    d, n, inputs = c["hidden_size"], c.get("num_experts"), c["hidden_size_per_layer_input"]
    if shares(c, layer):
        out = {k: v for k, v in out.items() if not k.startswith(UNUSED)}
        wide = c["use_double_wide_mlp"] and c["intermediate_size"] * 2
        for name, shape in ((k, v) for k, v in out.items() if wide and k.startswith("mlp.")):
            out = out | {name: (d, wide) if "down" in name else (wide, d)}
    out = out | {"layer_scalar": (1,)}
    if c["enable_moe_block"]:
        ff = c["moe_intermediate_size"]
        out |= {"experts.gate_up_proj": (n, 2 * ff, d), "experts.down_proj": (n, d, ff),
                "router.proj.weight": (n, d), "router.scale": (d,),
                "router.per_expert_scale": (n,), "post_feedforward_layernorm_1.weight": (d,),
                "post_feedforward_layernorm_2.weight": (d,),
                "pre_feedforward_layernorm_2.weight": (d,)}
    if inputs:
        out |= {"per_layer_input_gate.weight": (inputs, d),
                "per_layer_projection.weight": (d, inputs),
                "post_per_layer_input_norm.weight": (d,)}
    return out


def outer_tensors(c):
    inputs = c["hidden_size_per_layer_input"] if is_gemma4(c) else 0
    if not inputs:
        return {}
    width = inputs * c["num_hidden_layers"]
    return {"model.embed_tokens_per_layer.weight": (c["vocab_size_per_layer_input"], width),
            "model.per_layer_model_projection.weight": (width, c["hidden_size"]),
            "model.per_layer_projection_norm.weight": (inputs,)}


def value_of(name, shape, unit):
    """Of what no other family has: scales that tell the experts apart; None of other tensors."""
    if name.endswith("router.scale"):
        return np.sqrt(shape[0]) * (1 + 0.3 * unit)
    if name.endswith("per_expert_scale"):
        return 1 + 0.3 * unit
    return None


UNUSED = ("self_attn.k_proj", "self_attn.v_proj", "self_attn.k_norm")


def restore(c, values, form):
    out = {}
    for name, value in values.items():
        head, at, end = name.partition(".experts.")
        if form != "stacked" or not at:
            out[name] = value
        elif end == "down_proj":
            out[f"{head}.experts.switch_glu.down_proj.weight"] = value
        else:
            gate, up = np.split(value, 2, axis=1)
            for part, half in (("gate", gate), ("up", up)):
                out[f"{head}.experts.switch_glu.{part}_proj.weight"] = np.ascontiguousarray(half)
    for layer in range(c["num_hidden_layers"]) if form == "spare" else ():
        if shares(c, layer):
            like = c["layer_types"].index(c["layer_types"][layer])
            for name in [n for n in values if n.startswith(f"model.layers.{like}.self_attn.")]:
                spare = f"model.layers.{layer}." + name.split(".", 3)[3]
                out.setdefault(spare, values[name] + 1)
    return out


# ---- GGUF --------------------------------------------------------------------------------------

GGUF_TOP = {"model.embed_tokens_per_layer.weight": "per_layer_token_embd.weight",
            "model.per_layer_model_projection.weight": "per_layer_model_proj.weight",
            "model.per_layer_projection_norm.weight": "per_layer_proj_norm.weight"}
GGUF_WHOLE = {"layer_scalar": "layer_output_scale.weight", "router.scale": "ffn_gate_inp.scale",
              "router.per_expert_scale": "ffn_down_exps.scale",
              "experts.gate_up_proj": "ffn_gate_up_exps.weight",
              "experts.down_proj": "ffn_down_exps.weight"}
GGUF_STEMS = {"router.proj": "ffn_gate_inp", "post_feedforward_layernorm_1": "post_ffw_norm_1",
              "post_feedforward_layernorm_2": "post_ffw_norm_2",
              "pre_feedforward_layernorm_2": "pre_ffw_norm_2", "per_layer_input_gate": "inp_gate",
              "per_layer_projection": "proj", "post_per_layer_input_norm": "post_norm"}


def write_gguf_keys(w, c):
    slides = [t == S for t in c["layer_types"]]
    full_kv = c["num_global_key_value_heads" if c["attention_k_eq_v"] else "num_key_value_heads"]
    w.add_head_count_kv([c["num_key_value_heads"] if s else full_kv for s in slides])
    w.add_key_length(c["global_head_dim"])
    w.add_value_length(c["global_head_dim"])
    w.add_key_length_swa(c["head_dim"])
    w.add_value_length_swa(c["head_dim"])
    w.add_sliding_window(c["sliding_window"])
    w.add_sliding_window_pattern(slides)
    w.add_shared_kv_layers(c["num_kv_shared_layers"])
    w.add_embedding_length_per_layer_input(c["hidden_size_per_layer_input"])
    full, sliding = (c["rope_parameters"][k] for k in (F, S))
    w.add_rope_freq_base(full["rope_theta"])
    w.add_rope_freq_base_swa(sliding["rope_theta"])
    w.add_rope_dimension_count(c["global_head_dim"])
    w.add_rope_dimension_count_swa(c["head_dim"])
    if c["final_logit_softcapping"]:
        w.add_final_logit_softcapping(c["final_logit_softcapping"])
    if c["enable_moe_block"]:
        w.add_expert_count(c["num_experts"])
        w.add_expert_used_count(c["top_k_experts"])
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    pairs = c["global_head_dim"] // 2
    turning = int(full["partial_rotary_factor"] * pairs)
    w.add_tensor("rope_freqs.weight",
                 np.array([1.0] * turning + [1e30] * (pairs - turning), dtype=np.float32))


def gguf_widths(c):
    """feed_forward_length: a number, or a list by layer where it differs."""
    if not c["use_double_wide_mlp"] or not c["num_kv_shared_layers"]:
        return c["intermediate_size"]
    return [c["intermediate_size"] * (2 if shares(c, i) else 1)
            for i in range(c["num_hidden_layers"])]
