"""Tokenizers made from GGUF vocabularies, loaded by Python `tokenizers`.

Usage: gguf_tokenizer.py BUILD DATA [MODEL [--full]]

Three proofs: the vectors that come with the vocabularies; a vocabulary written from a published
tokenizer.json (SentencePiece scores stand for its merges) gives that tokenizer's ids back; and the
real model's known ids.
"""
import json
import lzma
import os
import random
import subprocess
import sys
import tempfile

import gguf
from tokenizers import Tokenizer

VOCABS = ["gpt-2", "llama-bpe", "llama-spm", "qwen2", "qwen35", "gemma-4"]
REBUILT = {"llama2": ("llama", None), "llama3_2": ("gpt2", "llama-bpe"),
           "mistral_nemo": ("gpt2", "tekken"), "gptoss": ("gpt2", "gpt-4o")}
SMOLLM2 = {"Hello, we can use": [19556, 28, 392, 416, 722],
           "The capital of France is": [504, 3575, 282, 4649, 314],
           "Hello world! 123": [19556, 905, 17, 216, 33, 34, 35],
           "Café déjà vu.": [51, 1939, 2756, 32564, 90, 16739, 386, 101, 30],
           "  multiple   spaces": [216, 2701, 256, 5600], "\n": [198]}


def ours(build, model):
    out = subprocess.run([os.path.join(build, "tests", "tool_ckpt"), "tokenizer", model],
                         stdout=subprocess.PIPE, check=True).stdout
    t = Tokenizer.from_str(out.decode())
    t.encode_special_tokens = True
    return t


def unpack(path, folder, name):
    out = os.path.join(folder, name)
    with lzma.open(path) as f, open(out, "wb") as g:
        g.write(f.read())
    return out


def check_vectors(build, data, name, folder):
    base = os.path.join(data, "vocab", name)
    t = ours(build, unpack(base + ".gguf.xz", folder, name + ".gguf"))
    with open(base + ".inp", encoding="utf-8", newline="") as f:
        texts = f.read().split("\n__ggml_vocab_test__\n")
    with open(base + ".out") as f:
        want = [[int(x) for x in line.split()] for line in f.read().split("\n")]
    bad = [s for s, w in zip(texts, want) if t.encode(s, add_special_tokens=False).ids != w]
    print(f"{name}: {len(want)} vectors, {len(bad)} differ {bad[:1]}")
    return not bad and len(want) > 10


def write_gguf(path, source, model, pre):
    """The vocabulary as a converter writes it; byte fallback tokens have type 6, added ones 3."""
    spec = json.loads(source)
    by_id = {i: t for t, i in spec["model"]["vocab"].items()}
    added = {a["id"]: a["content"] for a in spec["added_tokens"]}
    by_id.update(added)
    n = max(by_id) + 1
    tokens = [by_id.get(i, f"[UNUSED_{i}]") for i in range(n)]
    is_byte = [len(t) == 6 and t.startswith("<0x") for t in tokens]
    types = [2 if t == "<unk>" else 3 if i in added else 5 if i not in by_id else 6 if b else 1
             for i, (t, b) in enumerate(zip(tokens, is_byte))]
    w = gguf.GGUFWriter(path, "llama")
    w.add_tokenizer_model(model)
    if pre:
        w.add_tokenizer_pre(pre)
        merges = [m if isinstance(m, str) else " ".join(m) for m in spec["model"]["merges"]]
        w.add_token_merges(merges)
    w.add_token_list(tokens)
    w.add_token_types(types)
    if model == "llama":
        # A token's score falls with the rank of its first merge; single characters come last.
        rank = {}
        for m in spec["model"]["merges"]:
            rank.setdefault("".join(m) if not isinstance(m, str) else m.replace(" ", ""), len(rank))
        w.add_token_scores([float(-rank.get(t, len(rank))) for t in tokens])
    w.add_bos_token_id(spec["model"]["vocab"].get("<s>", 1) if model == "llama" else min(added))
    w.add_add_bos_token(model == "llama")
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def random_texts(r, n):
    words = ("the quick Brown fox's I'LL 123 4567 naïve straße привет 你好世界 안녕 สวัสดี नमस्ते 🦙👍🏽 <s> </s> "
             "<|eot_id|> def f(x): return\tx+1 \u2581 [INST] \u00a0 e\u0301 ½ ||").split(" ")
    gaps = [" ", "  ", "\n", "\n\n", "\t", "", " \n ", "   "]
    for _ in range(n):
        if r.randrange(6) == 0:
            yield bytes(r.randrange(256) for _ in range(r.randrange(40))).decode("utf-8", "replace")
        else:
            yield "".join(r.choice(words) + r.choice(gaps) for _ in range(r.randrange(1, 14)))


def check_rebuilt(build, data, name, folder, n):
    model, pre = REBUILT[name]
    with lzma.open(os.path.join(data, "tokenizers", name, "tokenizer.json.xz")) as f:
        source = f.read().decode()
    path = os.path.join(folder, name + ".gguf")
    write_gguf(path, source, model, pre)
    t, theirs = ours(build, path), Tokenizer.from_str(source)
    theirs.encode_special_tokens = True
    bad = []
    texts = list(random_texts(random.Random(1), n))
    for special in (True, False):
        t.encode_special_tokens = theirs.encode_special_tokens = special
        for text in texts:
            a = t.encode(text, add_special_tokens=False).ids
            b = theirs.encode(text, add_special_tokens=False).ids
            if a != b or t.decode(a) != theirs.decode(a):
                bad.append((text, a, b))
    print(f"{name}: written as {model} vocabulary, {2 * n} texts, {len(bad)} differ {bad[:1]}")
    return not bad


def check_model(build, model):
    t = ours(build, model)
    bad = [s for s, w in SMOLLM2.items() if t.encode(s, add_special_tokens=False).ids != w]
    print(f"real model: {len(SMOLLM2)} texts, {len(bad)} differ {bad[:1]}")
    return not bad


def main():
    build, data = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
    model = sys.argv[3] if len(sys.argv) > 3 else ""
    n = 5000 if "--full" in sys.argv else 500
    results, skipped = [], 0
    with tempfile.TemporaryDirectory() as folder:
        for name in VOCABS:
            if os.path.exists(os.path.join(data, "vocab", name + ".gguf.xz")):
                results.append(check_vectors(build, data, name, folder))
            else:
                print(f"SKIP: no vocabulary {name}")
                skipped += 1
        for name in REBUILT:
            if os.path.exists(os.path.join(data, "tokenizers", name, "tokenizer.json.xz")):
                results.append(check_rebuilt(build, data, name, folder, n))
            else:
                print(f"SKIP: no tokenizer {name}")
                skipped += 1
        if os.path.exists(model.split(":", 1)[0]):
            results.append(check_model(build, model))
        else:
            print("SKIP: no model given")
            skipped += 1
    failed = results.count(False)
    print(f"{results.count(True)} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
