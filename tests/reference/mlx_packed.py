"""Packed checkpoints against MLX: its decoder gives our values, its encoder is never better, mlx-lm
loads and runs what we write.

Usage: mlx_packed.py BUILD [MODEL [--full]]; MODEL is anything that `assay convert` reads.

Every bits and groups 32 and 64 on the model, 128 on its down projections and on a tiny model.
Without --full: of the model the first and the last layer, and the embedding in one format.
"""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx_lm.utils import load_model

BITS = [2, 3, 4, 5, 6, 8]
passed = failed = skipped = 0


def check(ok, what):
    global passed, failed
    passed += bool(ok)
    failed += not ok
    print(("ok    " if ok else "FAIL  ") + what, flush=True)


def assay(build, *args):
    subprocess.run([os.path.join(build, "assay"), *args], check=True, stderr=subprocess.DEVNULL)


def tensors(folder):
    out = {}
    for path in sorted(Path(folder).glob("model*.safetensors")):
        out.update(mx.load(str(path)))
    return out


def f64(a):
    return np.array(a.astype(mx.float32)).astype(np.float64)


def decode(w, s, b, group, bits):
    """In f32 MLX multiplies, then adds; a code times a bf16 scale is exact, so that is fmaf."""
    return mx.dequantize(w, s.astype(mx.float32), b.astype(mx.float32), group, bits)


def square(a):
    return float((a * a).sum())


def compare_module(name, got, ours, source, group, bits):
    """Returns (values that differ, values beyond one bf16 rounding, our error, MLX's error)."""
    w, s, b = (got[name + x] for x in (".weight", ".scales", ".biases"))
    value = f64(decode(w, s, b, group, bits))
    differ = int((value != f64(ours[name + ".weight"])).sum())
    # In bf16 MLX rounds the product and the sum: half a unit of either, 2^-9 of their size.
    rounded = f64(mx.dequantize(w, s, b, group, bits))
    product = np.abs(value - np.repeat(f64(b), group, axis=-1))
    beyond = int((np.abs(rounded - value) > (product + np.abs(value)) * 2.0**-8 + 1e-38).sum())
    src = f64(source[name + ".weight"])
    theirs = f64(decode(*mx.quantize(source[name + ".weight"], group, bits), group, bits))
    norm = np.sqrt(square(src)) or 1.0
    return differ, beyond, np.sqrt(square(src - value)) / norm, np.sqrt(square(src - theirs)) / norm


def run_model(folder):
    model, config = load_model(Path(folder))
    logits = model(mx.array([[1, 5, 9, 2, 7, 3]])).astype(mx.float32)
    return logits.shape[-1] == config["vocab_size"] and bool(mx.isfinite(logits).all())


def prove(build, source, folder, what, rules, group, bits, wanted):
    """Quantizes by rules, expands by our own decoder, and compares module by module."""
    recipe, out, back = (os.path.join(folder, x) for x in ("r.yaml", "q", "back"))
    with open(recipe, "w") as f:
        f.write("why: a proof\nrules:\n" + rules)
    assay(build, "quantize", source, "-o", out, "--recipe", recipe)
    assay(build, "convert", out, "-o", back, "--expand", "f32")
    got, ours, src = tensors(out), tensors(back), tensors(source)
    with open(os.path.join(out, "config.json")) as f:
        entries = json.load(f)["quantization"]
    modules = sorted(k[:-7] for k in got if k.endswith(".scales"))
    explicit = all(m in entries for m in modules)
    picked = [m for m in modules if wanted(m) and
              (entries[m]["group_size"], entries[m]["bits"]) == (group, bits)]
    differ = beyond = worse = n = 0
    ratio = 0.0
    for m in picked:
        d, r, mine, theirs = compare_module(m, got, ours, src, group, bits)
        n += ours[m + ".weight"].size
        differ += d
        beyond += r
        worse += mine > theirs
        ratio = max(ratio, mine / theirs if theirs else float(mine > 0))
    check(picked and explicit and differ == 0 and beyond == 0,
          f"{what}: {len(picked)} tensors, {n} values, {differ} differ from mx.dequantize, "
          f"{beyond} beyond a bf16 rounding")
    check(picked and worse == 0, f"{what}: relative RMS error above MLX's on {worse} of "
          f"{len(picked)} tensors, worst ratio {ratio:.6f}")
    check(run_model(out), f"{what}: mlx-lm loads and runs it")
    for path in (out, back):
        subprocess.run(["rm", "-rf", path], check=True)


def write_tiny(folder):
    """One layer with K = 128 and 256, so that groups of 128 fit everywhere."""
    rng = np.random.default_rng(1)
    shapes = {"model.embed_tokens": (96, 128), "lm_head": (96, 128),
              "model.layers.0.self_attn.q_proj": (128, 128),
              "model.layers.0.self_attn.k_proj": (64, 128),
              "model.layers.0.self_attn.v_proj": (64, 128),
              "model.layers.0.self_attn.o_proj": (128, 128),
              "model.layers.0.mlp.gate_proj": (256, 128), "model.layers.0.mlp.up_proj": (256, 128),
              "model.layers.0.mlp.down_proj": (128, 256)}
    norms = ["model.norm", "model.layers.0.input_layernorm",
             "model.layers.0.post_attention_layernorm"]
    arrays = {k + ".weight": mx.array(rng.normal(0, 0.05, s)).astype(mx.bfloat16)
              for k, s in shapes.items()}
    arrays.update({k + ".weight": mx.ones(128, dtype=mx.bfloat16) for k in norms})
    os.makedirs(folder)
    mx.save_safetensors(os.path.join(folder, "model.safetensors"), arrays)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump({"model_type": "llama", "hidden_size": 128, "intermediate_size": 256,
                   "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
                   "vocab_size": 96, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
                   "max_position_embeddings": 128, "tie_word_embeddings": False}, f)


def real_model(build, model, folder, full):
    packed, source = os.path.join(folder, "packed"), os.path.join(folder, "bf16")
    assay(build, "convert", model, "-o", packed)
    assay(build, "convert", packed, "-o", source, "--expand", "bf16")
    with open(os.path.join(source, "config.json")) as f:
        last = json.load(f)["num_hidden_layers"] - 1
    parts = ("layers.0.", f"layers.{last}.")
    for bits in BITS:
        for group in (32, 64):
            def wanted(m):
                return full or any(p in m for p in parts) or (bits, group) == (4, 64)
            prove(build, source, folder, f"model, {bits} bits, group {group}",
                  f"- bits: {bits}\n  group: {group}\n", group, bits, wanted)
        prove(build, source, folder, f"down_proj, {bits} bits, group 128",
              f"- bits: {bits}\n- match: '*.down_proj.weight'\n  bits: {bits}\n  group: 128\n", 128,
              bits, lambda m: full or any(p in m for p in parts))


def main():
    global skipped
    build = sys.argv[1]
    model = next((a for a in sys.argv[2:] if not a.startswith("--")), "")
    with tempfile.TemporaryDirectory() as folder:
        tiny = os.path.join(folder, "tiny")
        write_tiny(tiny)
        for bits in BITS:
            for group in (32, 64, 128):
                prove(build, tiny, folder, f"tiny, {bits} bits, group {group}",
                      f"- bits: {bits}\n  group: {group}\n", group, bits, lambda m: True)
        if model:
            real_model(build, model, folder, "--full" in sys.argv)
        else:
            skipped += 1
            print("SKIP: no model given: the proofs on a real one did not run")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


sys.exit(main())
