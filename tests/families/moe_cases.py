"""Cases, tensors and storage forms of the families with experts, for cases.py.

A folder of a case holds a tensor for each expert, as HF writes it. The other forms in which the
same experts are published are made from it: `restore` gives their tensors.
"""
import numpy as np

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LINEAR = {"rope_type": "linear", "factor": 4.0}
FORMS = {case: ("fused", "stacked") for case in
         ("mixtral", "mixtral-tied", "qwen3-moe", "qwen3-moe-step", "qwen3-moe-dense-layers")}
PROJECTIONS = {"mixtral": {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}}
SAME = {"gate_proj": "gate_proj", "up_proj": "up_proj", "down_proj": "down_proj"}


def cases(base):
    """name: (config, mlx-lm is a reference for it)."""
    m = {"model_type": "mixtral", **base, "num_local_experts": 4, "num_experts_per_tok": 2,
         "sliding_window": None}
    q = {"model_type": "qwen3_moe", **base, "num_experts": 6, "num_experts_per_tok": 3,
         "moe_intermediate_size": 32, "norm_topk_prob": True, "decoder_sparse_step": 1,
         "mlp_only_layers": []}
    return {
        "mixtral": (m, True),
        "mixtral-tied": ({**m, "tie_word_embeddings": True}, True),
        "mixtral-one": ({**m, "num_experts_per_tok": 1}, True),
        "mixtral-all": ({**m, "num_experts_per_tok": 4}, True),
        "mixtral-window": ({**m, "sliding_window": 40}, False),
        "mixtral-wide-heads": ({**m, "head_dim": 24}, False),
        "mixtral-linear": ({**m, "rope_scaling": LINEAR}, False),
        "qwen3-moe": (q, True),
        "qwen3-moe-raw": ({**q, "norm_topk_prob": False}, True),
        "qwen3-moe-step": ({**q, "decoder_sparse_step": 2}, True),
        "qwen3-moe-dense-layers": ({**q, "mlp_only_layers": [0, 2]}, True),
        "qwen3-moe-no-experts": ({**q, "num_experts": 0}, True),
        "qwen3-moe-tied": ({**q, "tie_word_embeddings": True}, True),
        "qwen3-moe-wide-heads": ({**q, "head_dim": 32}, True),
        "qwen3-moe-yarn": ({**q, "rope_scaling": YARN}, False),
        "qwen3-moe-biases": ({**q, "attention_bias": True}, False),
        "qwen3-moe-window": ({**q, "use_sliding_window": True, "sliding_window": 33}, False),
    }


def is_sparse(c, layer):
    if c["model_type"] == "mixtral":
        return True
    return (c["model_type"] == "qwen3_moe" and c["num_experts"] > 0
            and layer not in c["mlp_only_layers"] and (layer + 1) % c["decoder_sparse_step"] == 0)


def block(c):
    return "block_sparse_moe" if c["model_type"] == "mixtral" else "mlp"


def n_experts(c):
    return c.get("num_experts", c.get("num_local_experts"))


def tensors(c):
    """What stands in a sparse layer in place of the dense MLP, without "model.layers.N."."""
    d, mixtral = c["hidden_size"], c["model_type"] == "mixtral"
    ff = c["intermediate_size"] if mixtral else c["moe_intermediate_size"]
    names = PROJECTIONS.get(c["model_type"], SAME)
    out = {f"{block(c)}.gate.weight": (n_experts(c), d)}
    for e in range(n_experts(c)):
        for canonical, stored in names.items():
            shape = (d, ff) if canonical == "down_proj" else (ff, d)
            out[f"{block(c)}.experts.{e}.{stored}.weight"] = shape
    return out


def stack(c, values, prefix):
    """One array of all experts for each matrix; `prefix` precedes ".gate_proj.weight"."""
    out = {}
    names = PROJECTIONS.get(c["model_type"], SAME)
    for layer in range(c["num_hidden_layers"]):
        if not is_sparse(c, layer):
            continue
        head = f"model.layers.{layer}.{block(c)}"
        for canonical, stored in names.items():
            parts = [values.pop(f"{head}.experts.{e}.{stored}.weight")
                     for e in range(n_experts(c))]
            out[f"{head}.{prefix}.{canonical}.weight"] = np.stack(parts)
    return values | out


def restore(c, values, form):
    """The tensors of a folder in another form: "stacked" as mlx-lm saves them, "fused" as
    transformers 5 does without its original format."""
    values = stack(c, dict(values), "switch_mlp")
    if form == "stacked":
        return values
    out = {}
    for name, value in values.items():
        head, at, end = name.partition(".switch_mlp.")
        head = head.replace(".block_sparse_moe", ".mlp")
        if not at:
            out[name.replace(".block_sparse_moe.", ".mlp.")] = value
        elif end == "gate_proj.weight":
            up = values[name.replace("gate_proj", "up_proj")]
            out[f"{head}.experts.gate_up_proj"] = np.concatenate([value, up], axis=1)
        elif end == "down_proj.weight":
            out[f"{head}.experts.down_proj"] = value
    return out


# ---- GGUF --------------------------------------------------------------------------------------

GGUF_ARCH = {"mixtral": "llama", "qwen3_moe": "qwen3moe"}
GGUF_STEMS = {
    "mlp.gate": "ffn_gate_inp", "block_sparse_moe.gate": "ffn_gate_inp",
    **{f"{b}.experts.{p}_proj": f"ffn_{p}_exps" for b in ("mlp", "block_sparse_moe")
       for p in ("gate", "up", "down")}}


def fits_gguf(c):
    """The format has no key for these; llama.cpp always makes the weights sum to 1."""
    return not (c.get("mlp_only_layers") or c.get("decoder_sparse_step", 1) > 1
                or not c.get("norm_topk_prob", True) or n_experts(c) == 0
                or (c["model_type"] == "mixtral" and c.get("sliding_window")))


def add_gguf_keys(w, c):
    if not n_experts(c):
        return
    w.add_expert_count(n_experts(c))
    w.add_expert_used_count(c["num_experts_per_tok"])
    if "moe_intermediate_size" in c:
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])
