"""GGML block types against Python `gguf`: bit-identical values of random blocks, and of a real file.

Usage: gguf_decode.py BUILD [DATA [MODEL [--full]]]; MODEL is archive:member or a .gguf.
"""
import os
import subprocess
import sys
import tempfile
import zipfile

import gguf
import numpy as np

TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0",
         "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "MXFP4", "NVFP4"]


def tool(build, *args, data=None):
    path = os.path.join(build, "tests", "tool_ckpt")
    return subprocess.run([path, *args], input=data, stdout=subprocess.PIPE, check=True).stdout


def bits(a):
    """f32 bits; every NaN is one value, since its payload is nobody's promise."""
    u = np.ascontiguousarray(a, dtype=np.float32).view(np.uint32).ravel().copy()
    u[(u & 0x7fffffff) > 0x7f800000] = 0x7fc00000
    return u


def random_blocks(build, rng, name, n):
    kind = gguf.GGMLQuantizationType[name]
    _, size = gguf.GGML_QUANT_SIZES[kind]
    raw = rng.integers(0, 256, (n, size), dtype=np.uint8)
    if name == "MXFP4":  # the format forbids exponent 255
        raw[raw[:, 0] == 255, 0] = 254
    if name == "NVFP4":  # the format forbids this scale; gguf takes it for zero
        scales = raw[:, :4]
        scales[scales & 0x7f == 0x7f] -= 1
    with np.errstate(all="ignore"):
        want = bits(gguf.quants.dequantize(raw, kind))
    got = bits(np.frombuffer(tool(build, "blocks", str(int(kind)), data=raw.tobytes()), np.float32))
    differ = int((want != got).sum()) if want.size == got.size else want.size
    print(f"{name:6} {want.size:9} values, {differ} differ")
    return differ == 0


def permute_back(rows, heads):
    """Rows of q and k as HF has them."""
    dim = rows.shape[0] // heads
    return rows.reshape(heads, dim // 2, 2, -1).swapaxes(1, 2).reshape(rows.shape)


def real_model(build, model):
    with tempfile.TemporaryDirectory() as folder:
        path = model
        if ":" in model:
            archive, member = model.split(":", 1)
            path = os.path.join(folder, "model.gguf")
            with zipfile.ZipFile(archive) as z, open(path, "wb") as f:
                f.write(z.read(member))
        reader = gguf.GGUFReader(path)
        ok = True
        n = differ = 0
        for name, hf, heads in [("blk.0.attn_q", "model.layers.0.self_attn.q_proj", 9),
                                ("blk.29.attn_k", "model.layers.29.self_attn.k_proj", 3),
                                ("blk.3.ffn_down", "model.layers.3.mlp.down_proj", 0),
                                ("token_embd", "model.embed_tokens", 0),
                                ("output_norm", "model.norm", 0)]:
            t = next(t for t in reader.tensors if t.name == name + ".weight")
            want = gguf.quants.dequantize(t.data, t.tensor_type)
            if heads:
                want = permute_back(want, heads)
            got = np.frombuffer(tool(build, "decode", model, hf + ".weight"), np.float32)
            n += want.size
            differ += int((bits(want) != bits(got)).sum()) if got.size == want.size else want.size
            ok &= got.size == want.size
        print(f"real file, rope rows put back: {n} values, {differ} differ")
        return ok and differ == 0


def main():
    build = sys.argv[1]
    full = "--full" in sys.argv
    model = sys.argv[3] if len(sys.argv) > 3 else None
    rng = np.random.default_rng(1)
    results = [random_blocks(build, rng, name, 100000 if full else 4000) for name in TYPES]
    skipped = 0
    if model and os.path.exists(model.split(":", 1)[0]):
        results.append(real_model(build, model))
    else:
        print("SKIP: no model given")
        skipped = 1
    failed = results.count(False)
    print(f"{results.count(True)} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
