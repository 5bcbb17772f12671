"""Gemma 3 270M, a real model of mixed GGML types, against mlx-lm on the same weights.

usage: gemma3_real.py BUILD DATA MODEL [--full]

The GGUF is looked for beside MODEL, as .cache/gemma-3-270m-q4_k_m.gguf (tests/setup.sh puts it
there). Its blocks are decoded by the gguf package, not by us, and given to mlx-lm in float32; we
run the GGUF itself. At every position of 20 prompts the first choice must agree wherever mlx-lm's
margin is clear, and the logits within 1e-4 of their range. A conversation of turns whose pages are
kept must equal cold runs. --full: perplexity over more than 4,000 tokens of this tree's own docs in
windows of 1,024 (the model's own window is 512), within 0.5 % of mlx-lm's.
"""
import json
import math
import pathlib
import struct
import subprocess
import sys
import tempfile

import gguf
import mlx.core as mx
import numpy as np
from mlx_lm.models import gemma3_text

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from mlx_logits import TEXTS  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BAR = 1e-4
BOS = 2
NAMES = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
         "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
         "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
         "post_ffw_norm": "post_feedforward_layernorm", "ffn_gate": "mlp.gate_proj",
         "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
passed = failed = 0


def check(good, text):
    global passed, failed
    passed += bool(good)
    failed += not good
    print(("ok   " if good else "FAIL ") + text, flush=True)


def hf_name(name):
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    _, layer, stem, end = name.split(".")
    return f"model.layers.{layer}.{NAMES[stem]}.{end}"


def peer_model(path):
    reader = gguf.GGUFReader(path)
    key = {k: f.contents() for k, f in reader.fields.items() if k.startswith("gemma3.")}
    weights = {}
    for t in reader.tensors:
        value = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
        if t.name.endswith("norm.weight"):
            value = value - 1
        weights[hf_name(t.name)] = mx.array(value)
    args = gemma3_text.ModelArgs(
        model_type="gemma3_text", hidden_size=key["gemma3.embedding_length"],
        num_hidden_layers=key["gemma3.block_count"],
        intermediate_size=key["gemma3.feed_forward_length"],
        num_attention_heads=key["gemma3.attention.head_count"],
        num_key_value_heads=key["gemma3.attention.head_count_kv"],
        head_dim=key["gemma3.attention.key_length"],
        rms_norm_eps=float(key["gemma3.attention.layer_norm_rms_epsilon"]),
        vocab_size=weights["model.embed_tokens.weight"].shape[0],
        rope_theta=float(key["gemma3.rope.freq_base"]),
        sliding_window=key["gemma3.attention.sliding_window"])
    model = gemma3_text.Model(args)
    model.load_weights(list(model.sanitize(weights).items()), strict=True)
    return model


def peer_logits(model, ids):
    return np.array(model(mx.array([ids]))[0])


def encode(build, path, texts):
    """Ids with what the post-processor adds: Gemma's <bos>."""
    data = b"".join(b"E" + struct.pack("<I", len(t.encode())) + t.encode() for t in texts)
    out = subprocess.run([build / "tests" / "tool_tokenize", path], input=data, check=True,
                         capture_output=True).stdout
    lists, at = [], 0
    for _ in texts:
        n = struct.unpack_from("<I", out, at)[0]
        lists.append(list(struct.unpack_from(f"<{n}i", out, at + 4)))
        at += 4 + 4 * n
    return lists


def agree_on_prompts(build, path, model):
    prompts = [ids[:24] for ids in encode(build, path, TEXTS)]
    check(all(p[0] == BOS and BOS not in p[1:] for p in prompts), "every prompt has one <bos>")
    with tempfile.TemporaryDirectory() as tmp:
        tokens, out = pathlib.Path(tmp, "tokens"), pathlib.Path(tmp, "logits")
        tokens.write_text("".join(" ".join(map(str, p)) + "\n" for p in prompts))
        subprocess.run([build / "tests" / "tool_logits", path, tokens, out, "f32"], check=True)
        ours = np.fromfile(out, dtype="<f4").reshape(sum(map(len, prompts)), -1)
    worst, differ, unclear, at = 0.0, 0, 0, 0
    for p in prompts:
        for mine, want in zip(ours[at:at + len(p)], peer_logits(model, p)):
            span = want.max() - want.min()
            worst = max(worst, float(np.abs(mine - want).max() / span))
            second, first = np.partition(want, -2)[-2:]
            unclear += first - second <= BAR * span
            differ += first - second > BAR * span and mine.argmax() != want.argmax()
        at += len(p)
    check(differ == 0, f"{len(prompts)} prompts, {at} positions: {differ} first choices differ, "
          f"{unclear} without a clear one")
    check(worst <= BAR, f"logits within {worst:.2g} of their range, bar {BAR:g}")
    # A wrong reading must be seen: full layers with the sliding layers' rope base.
    for layer in model.model.layers:
        layer.self_attn.rope = model.model.layers[0].self_attn.rope
    p = prompts[0]
    far = np.abs(ours[:len(p)] - peer_logits(model, p)).max()
    check(far > 0.1, f"one rope base for all layers moves logits by {far:.2g}")


def keep_pages(build, path):
    """A conversation of turns against its turns run cold, with their history as it was."""
    template = "".join("{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content }}"
                       "<end_of_turn>\n{% endfor %}<start_of_turn>model\n")
    words = ["Tell me about the sea, in a few words, as if I were a child who has never seen it. "
             "Speak of the waves, of the salt, of the birds and of the ships that come and go.",
             "And of the mountains?", "Thank you."]
    with tempfile.TemporaryDirectory() as tmp:
        tmp = pathlib.Path(tmp)
        chatty = tmp / "chatty.gguf"  # the base model has no template
        subprocess.run([sys.executable, "-m", "gguf.scripts.gguf_new_metadata", path, chatty,
                        "--chat-template", "{{ bos_token }}" + template], check=True,
                       capture_output=True)

        def run(name, lines, *more):
            (tmp / "in.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
            done = subprocess.run(
                [build / "assay", "infer", "-m", chatty, "--batch", tmp / "in.jsonl", "-o",
                 tmp / name, "--max-tokens", "24", "--max-ctx", "1024", *more], check=False,
                capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(done.stderr)
            answers = [json.loads(x) for x in (tmp / name).read_text().splitlines()]
            return [x["response"]["body"] for x in answers]

        warm = run("warm", [{"custom_id": "w", "turns": words}])[0]["choices"]
        cold = run("cold", [{"custom_id": "c", "turns": words}], "--no-prefix")[0]["choices"]
        said = [c["message"]["content"] for c in warm]
        check(len(said) == 3 and said == [c["message"]["content"] for c in cold],
              "three turns that keep their pages equal turns that do not")
        line = {"custom_id": "a", "messages": [{"role": "user", "content": words[0]}]}
        alone = run("alone", [line])[0]["choices"][0]["message"]["content"]
        check(alone == said[0], "the first turn equals a request of its own")


def perplexity(build, path, model):
    ctx = 1024
    text = "".join((ROOT / "docs" / f"{n}.md").read_text()
                   for n in ("numerics", "formats", "architecture"))
    ids = encode(build, path, [text])[0]
    with tempfile.TemporaryDirectory() as tmp:
        file = pathlib.Path(tmp, "text")
        file.write_text(text)
        said = json.loads(subprocess.run(
            [build / "assay", "infer", "-m", path, "--score", "--text", file, "--ctx", str(ctx),
             "--llama-windows", "--json"], check=True, capture_output=True).stdout)
    nll, n = 0.0, 0
    for start in range(0, len(ids) - ctx + 1, ctx):
        window = [BOS] + ids[start + 1:start + ctx]
        h = model.model(mx.array([window]))[0, ctx // 2:ctx - 1]
        rows = model.model.embed_tokens.as_linear(h)
        said_id = mx.array(window[ctx // 2 + 1:])[:, None]
        nll -= float((mx.take_along_axis(rows, said_id, 1)[:, 0] - mx.logsumexp(rows, 1)).sum())
        n += rows.shape[0]
    want = math.exp(nll / n)
    check(len(ids) >= 4000 and abs(said["perplexity"] / want - 1) < 0.005,
          f"{len(ids)} tokens, {n} scored: perplexity {said['perplexity']:.5f}, mlx-lm's "
          f"{want:.5f}")


def main():
    build = pathlib.Path(sys.argv[1])
    path = pathlib.Path(sys.argv[3].split(":")[0]).parent / "gemma-3-270m-q4_k_m.gguf"
    if not path.exists():
        print(f"SKIP: no {path.name} beside the model")
        return 77
    mx.set_default_device(mx.cpu)
    keep_pages(build, path)
    model = peer_model(path)
    if "--full" in sys.argv:
        perplexity(build, path, model)
    agree_on_prompts(build, path, model)  # last: it breaks the peer
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
