"""mxfp4, mxfp8 and nvfp4 against MLX: what quantize writes, and what we read.

usage: mlx_block.py BUILD DATA MODEL [--full]

DATA and MODEL are not used. Matrices of many scales are quantized by us and by mx.quantize. Scales
must be equal but for groups of zeros (any scale will do), and so must the values but for ties, where
MLX's CPU fallback takes the smaller magnitude and we the even code: both are as near. Then MLX's own
packed tensors, every scale byte and code in them, nvfp4 with a global scale too, must be decoded by
us as mx.dequantize does, and come back from quantize --verify as they were.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import mlx.core as mx
import numpy as np
from safetensors.numpy import load_file, save_file

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "families")]
import cases  # noqa: E402
from families import Tally, assay  # noqa: E402

MODES = {"mxfp4": (32, 4), "mxfp8": (32, 8), "nvfp4": (16, 4)}
CONFIG = {**cases.CASES["llama"][0], "num_hidden_layers": 1}
NAME = "model.embed_tokens"  # the matrix under test: K = 64


def folder_of(path, values, rows):
    """A llama whose embedding is `values` of `rows` rows."""
    config = {**CONFIG, "vocab_size": rows}
    tensors = {n: np.zeros(s, np.float32) for n, s in cases.text_tensors(config).items()}
    tensors |= values
    path.mkdir()
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return config


def write_config(path, config, quantization=None):
    extra = {"quantization": quantization} if quantization else {}
    (path / "config.json").write_text(json.dumps({**config, **extra}))


def decoded(build, folder):
    """Our f32 values of the matrix."""
    flat = folder.with_name(folder.name + "-f32")
    assay(build, "convert", folder, "-o", flat, "--expand", "f32")
    return load_file(flat / "model.safetensors")[NAME + ".weight"]


def mlx_values(w, scales, mode, global_scale=None):
    group, bits = MODES[mode]
    g = None if global_scale is None else mx.array(global_scale)
    return np.array(mx.dequantize(mx.array(w), mx.array(scales), group_size=group, bits=bits,
                                  mode=mode, global_scale=g, dtype=mx.float32))


def source(rows):
    """Rows of many sizes, groups of zeros, exact powers and their neighbours, ties."""
    r = np.random.Generator(np.random.PCG64(5))
    w = r.standard_normal((rows, 64)) * np.exp2(r.integers(-12, 6, (rows, 1)))
    w[0] = 0
    w[1, :32] = 0
    w[2] = np.tile([6, .25, .75, 1.25, 1.75, 2.5, 3.5, 5], 8)
    w[3] = np.tile([448, -.25, 17, 19, -21, 2 ** -7, 3 * 2 ** -8, 464 / 2], 8)
    for i in range(4, 40):
        w[i] = np.minimum(np.abs(w[i]), 1) * (6 if i % 2 else 448) * 2.0 ** (i - 20) / 8
        w[i, ::16] = (6 if i % 2 else 448) * 2.0 ** (i - 20)
        if i % 3 == 0:
            w[i, ::16] = np.nextafter(w[i, ::16].astype(np.float32), np.float32(np.inf))
    w[39] /= 2 ** 20  # nvfp4 scales stay in their range
    return w.astype(np.float32)


def run_encoder(tally, build, mode, tmp):
    rows = 400
    w = source(rows)
    if mode == "nvfp4":
        w = np.clip(w, -2000, 2000)
    folder, packed, recipe = tmp / f"{mode}-src", tmp / f"{mode}-ours", tmp / "recipe.yaml"
    write_config(folder, folder_of(folder, {NAME + ".weight": w}, rows))
    recipe.write_text(f"why: a proof\nrules:\n  - format: {mode}\n")
    assay(build, "quantize", folder, "-o", packed, "--recipe", recipe, "--verify")
    out = load_file(packed / "model.safetensors")
    group, bits = MODES[mode]
    theirs, scales = (np.array(a) for a in mx.quantize(mx.array(w), group, bits, mode=mode)[:2])
    some = np.abs(w).reshape(rows, -1, group).max(-1) > 0
    same = out[NAME + ".scales"][some] == scales[some]
    tally.say(same.all(), f"{mode}: {same.sum()} of {same.size} scales are MLX's")
    a, b = decoded(build, packed), mlx_values(theirs, scales, mode)
    ties = (a != b) & (np.abs(a - w) == np.abs(b - w))
    tally.say(((a == b) | ties).all(), f"{mode}: {(a == b).sum()} of {a.size} values are MLX's, "
              f"{ties.sum()} are ties, {((a != b) & ~ties).sum()} differ")
    if bits == 4:
        tally.say(ties.sum() > 0, f"{mode}: ties occurred")
    again = mlx_values(out[NAME + ".weight"], out[NAME + ".scales"], mode)
    tally.say(np.array_equal(again, a), f"{mode}: MLX decodes what we wrote as we do")


def run_decoder(tally, build, mode, tmp, global_scale=None):
    """Every scale byte, every code."""
    group, bits = MODES[mode]
    r = np.random.Generator(np.random.PCG64(6))
    rows, k = 512, 64
    codes = r.integers(0, 256, (rows, k * bits // 8), dtype=np.uint8)
    if bits == 8:
        codes[(codes & 127) == 127] = 3
    scales = r.permutation(np.arange(rows * k // group) % 256).astype(np.uint8)
    scales = scales.reshape(rows, -1)
    if mode == "nvfp4":
        scales[(scales & 127) == 127] = 1
    else:
        scales[scales > 245] -= 20  # larger ones overflow f32: refused, since not finite
    values = {NAME + ".weight": codes.view(np.uint32), NAME + ".scales": scales}
    if global_scale is not None:
        values[NAME + ".global_scale"] = np.array([global_scale], np.float32)
    name = f"{mode}{'-global' if global_scale is not None else ''}"
    folder = tmp / f"{name}-theirs"
    config = folder_of(folder, {}, rows)
    tensors = {k: v for k, v in load_file(folder / "model.safetensors").items()
               if k != NAME + ".weight"} | values
    save_file(tensors, folder / "model.safetensors", metadata={"format": "mlx"})
    write_config(folder, config, {"group_size": group, "bits": bits, "mode": mode})
    want = mlx_values(values[NAME + ".weight"], scales, mode,
                      None if global_scale is None else np.float32(global_scale))
    got = decoded(build, folder)
    tally.say(np.array_equal(got, want), f"{name}: {(got == want).sum()} of {got.size} values "
              "of all codes and scales are MLX's")
    copied = tmp / f"{name}-copied"
    assay(build, "convert", folder, "-o", copied)
    out = load_file(copied / "model.safetensors")
    tally.say(all(np.array_equal(out[k], v) for k, v in values.items()), f"{name}: kept as it is")
    # A NaN is refused where the weights are loaded.
    scales[7, 0] = 255
    save_file(tensors, folder / "model.safetensors", metadata={"format": "mlx"})
    tokens = tmp / "tokens"
    tokens.write_text("1 2 3\n")
    done = subprocess.run([build / "tests" / "tool_logits", folder, tokens, tmp / "out", "f32"],
                          capture_output=True, text=True, check=False)
    tally.say(done.returncode != 0 and "row 7: scale 0 is a NaN" in done.stderr,
              f"{name}: a NaN scale is refused: {done.stderr.strip()[-60:]}")


def main():
    build = pathlib.Path(sys.argv[1])
    mx.set_default_device(mx.cpu)
    tally = Tally()
    with tempfile.TemporaryDirectory() as scratch:
        tmp = pathlib.Path(scratch)
        for mode in MODES:
            run_encoder(tally, build, mode, tmp)
            run_decoder(tally, build, mode, tmp)
        run_decoder(tally, build, "nvfp4", tmp, 3.7)
    print(f"{tally.passed} passed, {tally.failed} failed, 0 skipped")
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
