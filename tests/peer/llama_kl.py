"""llama_kl.py ASSAY GGUF REF VARIANT TEXT [WINDOWS]: compare's KL and perplexity against llama.cpp's.

REF and VARIANT are dense folders (assay convert --expand f32), so both programs hold the same
weights: they are written as F32 GGUF files with GGUF's metadata and loaded by llama.cpp through
llama-cpp-python, which with numpy and gguf is not part of ./check (its build takes 15
minutes). TEXT is cut into windows of 256 tokens.

KL: mean over every token of the windows but the first, over the whole vocabulary, as llama.cpp's
perplexity --kl-divergence forms it, against `assay compare --forced-prompts`. Perplexity: llama.cpp's
own halves of the windows, against `assay infer --score --llama-windows`. Each within 1 %.
"""

import ctypes
import json
import os
import subprocess
import sys
import tempfile

import gguf_f32
import llama_cpp as lc
import numpy as np

QUIET = lc.llama_log_callback(lambda level, text, data: None)  # kept: C calls it later
WINDOW = 256
NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
         "post_attention_layernorm": "ffn_norm"}


def stored(path):
    """Names and values of a safetensors file, as f32."""
    with open(path, "rb") as f:
        size = int.from_bytes(f.read(8), "little")
        head = json.loads(f.read(size))
        for name, t in head.items():
            if name == "__metadata__":
                continue
            begin, end = t["data_offsets"]
            f.seek(8 + size + begin)
            data = f.read(end - begin)
            if t["dtype"] == "BF16":
                x = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
            else:
                x = np.frombuffer(data, {"F32": "<f4", "F16": "<f2"}[t["dtype"]]).astype(np.float32)
            yield name, x.reshape(t["shape"])


def tensors(folder):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    files = sorted(f for f in os.listdir(folder) if f.endswith(".safetensors"))
    for file in files:
        for name, x in stored(os.path.join(folder, file)):
            if name == "model.embed_tokens.weight":
                yield "token_embd.weight", x
            elif name == "model.norm.weight":
                yield "output_norm.weight", x
            elif name == "lm_head.weight":
                yield "output.weight", x
            else:
                _, _, layer, rest = name.split(".", 3)
                kind = NAMES[rest.removesuffix(".weight")]
                heads = {"attn_q": config["num_attention_heads"],
                         "attn_k": config["num_key_value_heads"]}.get(kind)
                if heads:  # rotated by neighbours, not by halves
                    x = x.reshape(heads, 2, -1, x.shape[1]).swapaxes(1, 2).reshape(x.shape)
                yield f"blk.{layer}.{kind}.weight", x


class Peer:
    def __init__(self, path):
        self.model = lc.llama_model_load_from_file(path.encode(), lc.llama_model_default_params())
        params = lc.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = WINDOW
        params.n_threads = params.n_threads_batch = 2
        self.ctx = lc.llama_init_from_model(self.model, params)
        self.vocab = lc.llama_model_get_vocab(self.model)
        self.n_vocab = lc.llama_vocab_n_tokens(self.vocab)

    def tokens(self, text):
        data = text.encode()
        out = (ctypes.c_int32 * (len(data) + 8))()
        n = lc.llama_tokenize(self.vocab, data, len(data), out, len(out), False, False)
        return list(out[:n])

    def logprobs(self, ids):
        """Rows i predict ids[i + 1]."""
        lc.llama_memory_clear(lc.llama_get_memory(self.ctx), True)
        batch = lc.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, True
        if lc.llama_decode(self.ctx, batch) != 0:
            raise SystemExit("llama_decode failed")
        x = np.ctypeslib.as_array(lc.llama_get_logits(self.ctx), (len(ids), self.n_vocab))
        x = x.astype(np.float64)
        lc.llama_batch_free(batch)
        x -= x.max(axis=1, keepdims=True)
        return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def assay_kl(assay, folder, ref, var, windows):
    prompts = os.path.join(folder, "windows.jsonl")
    with open(prompts, "w", encoding="utf-8") as f:
        for w in windows:
            f.write(json.dumps({"prompt_token_ids": w, "max_tokens": 1}) + "\n")
    out = os.path.join(folder, "report")
    done = subprocess.run([assay, "compare", ref, var, "--prompts", prompts, "-o", out,
                           "--forced-prompts", "--no-floor", "--no-judge"], stdout=subprocess.DEVNULL)
    if done.returncode > 1:
        raise SystemExit("assay compare failed")
    with open(os.path.join(out, "report.json"), encoding="utf-8") as f:
        roles = json.load(f)["pairs"][0]["roles"]
    return roles["user"]


def assay_perplexity(assay, folder, text):
    out = subprocess.run([assay, "infer", "-m", folder, "--score", "--text", text, "--ctx",
                          str(WINDOW), "--llama-windows", "--json"], check=True, capture_output=True).stdout
    return json.loads(out)


def near(what, a, b):
    off = abs(a / b - 1)
    print(f"{'ok   ' if off <= 0.01 else 'FAIL '} {what}: assay {a:.6g}, llama.cpp {b:.6g}, {100 * off:.3f} % apart")
    return off <= 0.01


def main():
    assay, source, ref, var, text = sys.argv[1:6]
    most = int(sys.argv[6]) if len(sys.argv) > 6 else 8
    lc.llama_log_set(QUIET, ctypes.c_void_p(0))
    lc.llama_backend_init()
    with tempfile.TemporaryDirectory() as folder:
        peers = []
        for name, of in (("ref", ref), ("var", var)):
            path = os.path.join(folder, name + ".gguf")
            gguf_f32.write(source, path, "llama", tensors(of))
            peers.append(Peer(path))
        with open(text, encoding="utf-8") as f:
            ids = peers[0].tokens(f.read())
        windows = [ids[i:i + WINDOW] for i in range(0, len(ids) - WINDOW + 1, WINDOW)]
        kl, n, nll, scored = 0.0, 0, [0.0, 0.0], 0
        for k, w in enumerate(windows):
            p, q = (peer.logprobs(w) for peer in peers)
            if k < most:
                kl += (np.exp(p[:-1]) * (p[:-1] - q[:-1])).sum()
                n += len(w) - 1
            for side, rows in enumerate((p, q)):
                half = range(WINDOW // 2, WINDOW - 1)
                nll[side] -= sum(rows[i, w[i + 1]] for i in half)
            scored += WINDOW - 1 - WINDOW // 2
        mine = assay_kl(assay, folder, ref, var, windows[:most])
        good = near(f"mean KL over {n} tokens", mine["kl"]["value"], kl / n)
        if mine["positions"] != n:
            print(f"FAIL  assay forced {mine['positions']} tokens, {n} expected")
            good = False
        for side, of in enumerate((ref, var)):
            score = assay_perplexity(assay, of, text)
            good &= near(f"perplexity of {os.path.basename(of)} over {scored} tokens",
                         score["perplexity"], np.exp(nll[side] / scored))
    return 0 if good else 1


sys.exit(main())
