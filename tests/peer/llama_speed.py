"""llama_speed.py GGUF [THREADS]: the peer of `assay bench -m`: llama.cpp's own CPU speed.

Decode of one row, of 16 rows together, and prefill of 512, through llama-cpp-python (not part of
./check: its build takes 15 minutes). Built without AVX-512 and VNNI it compares with
`assay bench --isa avx2`:

    CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON" \
        pip install --no-binary llama-cpp-python llama-cpp-python
"""

import ctypes
import sys
import time

import llama_cpp as lc

QUIET = lc.llama_log_callback(lambda level, text, data: None)  # kept: C calls it later


def decode(ctx, ids, positions, sequences, last_only):
    batch = lc.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, (token, pos, seq) in enumerate(zip(ids, positions, sequences)):
        batch.token[i] = token
        batch.pos[i] = pos
        batch.n_seq_id[i] = 1
        batch.seq_id[i][0] = seq
        batch.logits[i] = not last_only or i == len(ids) - 1
    if lc.llama_decode(ctx, batch) != 0:
        raise SystemExit("llama_decode failed")
    lc.llama_synchronize(ctx)
    lc.llama_batch_free(batch)


def best(run, tokens, rounds):
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return tokens / min(times)


def main():
    path, threads = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 2
    lc.llama_log_set(QUIET, ctypes.c_void_p(0))
    lc.llama_backend_init()
    model = lc.llama_model_load_from_file(path.encode(), lc.llama_model_default_params())
    params = lc.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = 16 * 256, 512, 512
    params.n_seq_max = 16
    params.n_threads = params.n_threads_batch = threads
    ctx = lc.llama_init_from_model(model, params)
    memory = lc.llama_get_memory(ctx)
    state = {"pos": 0}

    def prefill():
        lc.llama_memory_clear(memory, True)
        decode(ctx, [100 + i for i in range(256)], range(256), [0] * 256, True)
        decode(ctx, [100 + i for i in range(256)], range(256), [1] * 256, True)

    def one_row():
        for _ in range(32):
            decode(ctx, [1000], [state["pos"]], [0], False)
            state["pos"] += 1

    def rows():
        for _ in range(8):
            decode(ctx, [1000] * 16, [state["pos"]] * 16, range(16), False)
            state["pos"] += 1

    result = {"prefill 512 (2 x 256)": best(prefill, 512, 3)}
    lc.llama_memory_clear(memory, True)
    result["decode 1 row"] = best(one_row, 32, 4)
    lc.llama_memory_clear(memory, True)
    state["pos"] = 0
    result["decode 16 rows"] = best(rows, 8 * 16, 4)
    for name, speed in result.items():
        print(f"{name:24} {speed:8.1f} tok/s")


if __name__ == "__main__":
    main()
