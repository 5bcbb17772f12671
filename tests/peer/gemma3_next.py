"""gemma3_next.py BUILD GGUF: the next token of Gemma 3 270M by assay, mlx-lm and llama.cpp.

20 prompts, every position. assay runs the GGUF itself in both its arithmetics; mlx-lm the weights that the
gguf package decodes, in float32; llama.cpp the file as it is, where it rounds activations to 8 bits
for its own kernels, and the same weights written as F32. For each pair: how often the first choice
is the same, at all positions and where the second program's margin between its first and second is
decided, that is larger than BAR of its logit range; and every disagreement with its margin.
A disagreement at a decided position fails.

Needs llama-cpp-python beside what tests/requirements.txt names (its build takes 15 minutes, so this
is not part of ./check):

    CMAKE_ARGS="-DGGML_NATIVE=ON" pip install --no-binary llama-cpp-python llama-cpp-python
"""
import ctypes
import os
import pathlib
import subprocess
import sys
import tempfile

import gguf
import gguf_f32
import llama_cpp as lc
import mlx.core as mx
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "reference"))
from gemma3_real import BOS, TEXTS, encode, peer_logits, peer_model  # noqa: E402

QUIET = lc.llama_log_callback(lambda level, text, data: None)  # kept: C calls it later
LONGEST = 96
# Of the logit range. mma90 rounds activations to bf16, and llama.cpp those of packed weights to 8
# bits by blocks, in 18 layers.
BAR = {"f32": 1e-4, "mma90": 0.01, "8 bits": 0.02}


def write_f32(source, path):
    """The same model with every tensor as F32."""
    gguf_f32.write(source, path, "gemma3",
                   ((t.name, gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32))
                    for t in gguf.GGUFReader(source).tensors))


def llama_logits(path, prompts):
    model = lc.llama_model_load_from_file(str(path).encode(), lc.llama_model_default_params())
    params = lc.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 256
    params.n_threads = params.n_threads_batch = 2
    params.type_k = params.type_v = 0  # f32
    ctx = lc.llama_init_from_model(model, params)
    n_vocab = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(model))
    rows = []
    for ids in prompts:
        lc.llama_memory_clear(lc.llama_get_memory(ctx), True)
        batch = lc.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, True
        if lc.llama_decode(ctx, batch) != 0:
            raise SystemExit("llama_decode failed")
        rows.append(np.ctypeslib.as_array(lc.llama_get_logits(ctx), (len(ids), n_vocab)).copy())
        lc.llama_batch_free(batch)
    lc.llama_free(ctx)
    lc.llama_model_free(model)
    return np.concatenate(rows)


def assay_logits(build, path, prompts, arithmetic):
    with tempfile.TemporaryDirectory() as tmp:
        tokens, out = pathlib.Path(tmp, "tokens"), pathlib.Path(tmp, "logits")
        tokens.write_text("".join(" ".join(map(str, p)) + "\n" for p in prompts))
        subprocess.run([build / "tests" / "tool_logits", path, tokens, out, arithmetic], check=True)
        return np.fromfile(out, dtype="<f4").reshape(sum(map(len, prompts)), -1)


def compare(name, ours, theirs, bar):
    """True where no decided position differs; theirs says what is decided."""
    span = theirs.max(1) - theirs.min(1)
    second, first = np.partition(theirs, -2, axis=1)[:, -2:].T
    margin = (first - second) / span
    same = ours.argmax(1) == theirs.argmax(1)
    decided = margin > bar
    apart = np.abs(ours - theirs).max(1) / span
    print(f"{'ok  ' if same[decided].all() else 'FAIL'} {name}: same first choice at {same.sum()} of "
          f"{len(same)} positions, at {(same & decided).sum()} of {decided.sum()} decided ones (margin "
          f"over {bar:g} of the range); logits apart by {np.median(apart):.2g} of it at half of the "
          f"positions, by {apart.max():.2g} at position {apart.argmax()}", flush=True)
    for i in np.flatnonzero(~same):
        print(f"       position {i}: {ours[i].argmax()} against {theirs[i].argmax()}, margin "
              f"{margin[i]:.2g} of the range, {first[i] - second[i]:.3g}")
    return bool(same[decided].all())


def main():
    build, path = pathlib.Path(sys.argv[1]), sys.argv[2]
    lc.llama_log_set(QUIET, ctypes.c_void_p(0))
    lc.llama_backend_init()
    mx.set_default_device(mx.cpu)
    prompts = [ids[:LONGEST] for ids in encode(build, path, TEXTS)]
    assert len(prompts) == 20 and all(p[0] == BOS for p in prompts)
    f32 = assay_logits(build, path, prompts, "f32")
    mma90 = assay_logits(build, path, prompts, "mma90")
    model = peer_model(path)
    mlx = np.concatenate([peer_logits(model, p) for p in prompts])
    packed = llama_logits(path, prompts)
    with tempfile.TemporaryDirectory() as tmp:
        expanded = os.path.join(tmp, "f32.gguf")
        write_f32(path, expanded)
        llama = llama_logits(expanded, prompts)
    good = [compare("assay f32 against mlx-lm", f32, mlx, BAR["f32"]),
            compare("assay f32 against llama.cpp, F32 weights", f32, llama, BAR["f32"]),
            compare("assay f32 against llama.cpp, the file", f32, packed, BAR["8 bits"]),
            compare("assay mma90 against mlx-lm", mma90, mlx, BAR["mma90"]),
            compare("assay mma90 against llama.cpp, F32 weights", mma90, llama, BAR["mma90"]),
            compare("assay mma90 against llama.cpp, the file", mma90, packed, BAR["8 bits"]),
            compare("mlx-lm against llama.cpp, F32 weights", mlx, llama, BAR["f32"]),
            compare("mlx-lm against llama.cpp, the file", mlx, packed, BAR["8 bits"])]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
