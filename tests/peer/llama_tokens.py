"""llama_tokens.py BUILD DATA MODEL [N]: ids of GGUF vocabularies by assay and by llama.cpp.

The vocabularies of DATA/vocab and of the two real models (MODEL, a wheel and its member, and Gemma 3
270M beside it) on N (50000) strings of tests/tokens/texts.py, added tokens parsed and not; every id
must be the same. Set aside, and counted, are strings
  with code points that Unicode 14 does not assign: each program has tables of its own age,
  with a token that llama.cpp takes for a control token by its name alone, whatever its type (RETYPED),
  with a byte that a byte-level vocabulary has no token for: both drop it, but in assay, as in
  Python tokenizers, its neighbours may then be joined.

Needs llama-cpp-python (its build takes 15 minutes, so this is not part of ./check).
"""
import ctypes
import glob
import lzma
import os
import pathlib
import random
import shutil
import sys
import tempfile
import unicodedata
import zipfile

import llama_cpp as lc

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tokens"), str(ROOT / "reference")]
import gguf_made  # noqa: E402
from texts import fill, one_string  # noqa: E402
from tokenizers_diff import Ours  # noqa: E402

RETYPED = ["</s>", "<|tool_response>"]
QUIET = lc.llama_log_callback(lambda level, text, data: None)  # kept: C calls it later


class Peer:
    def __init__(self, path):
        params = lc.llama_model_default_params()
        params.vocab_only = True
        self.model = lc.llama_model_load_from_file(path.encode(), params)
        self.vocab = lc.llama_model_get_vocab(self.model)

    def encode(self, text, special):
        data = text.encode()
        out = (ctypes.c_int32 * (2 * len(data) + 16))()
        n = lc.llama_tokenize(self.vocab, data, len(data), out, len(out), False, special)
        return list(out[:n])

    def close(self):
        lc.llama_model_free(self.model)


def lost_bytes(tokens):
    """Bytes without a token in the byte-level alphabet."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in plain]
    names = {**{b: chr(b) for b in plain}, **{b: chr(0x100 + i) for i, b in enumerate(rest)}}
    known = set(tokens)
    return bytes(b for b in range(256) if names[b] not in known)


def aside(text, lost):
    return (any(unicodedata.category(c) == "Cn" for c in text) or any(t in text for t in RETYPED) or
            any(b in lost for b in text.encode()))


def compare(build, path, name, texts):
    keys = gguf_made.read_keys(path)
    tokens, types = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    added = [t for t, kind in zip(tokens, types) if kind in (3, 4) and t.strip()] or ["<s>"]
    r = random.Random(1)
    texts = [fill(r, s, added) for s in texts]
    lost = lost_bytes(tokens) if keys["tokenizer.ggml.model"] == "gpt2" else b""
    old = [s for s in texts if not aside(s, lost)]
    peer, ours = Peer(path), Ours(build, path)
    bad = 0
    for mode, special in (("e", False), ("p", True)):
        for text, got in zip(old, ours.run([(mode, s) for s in old])):
            want = peer.encode(text, special)
            if want != got:
                bad += 1
                if bad <= 8:
                    print(f"  {mode} {ascii(text)[:200]}\n    llama.cpp {want[:40]}\n    assay     {got[:40]}")
    peer.close()
    print(f"{name}: {2 * len(old)} comparisons, {bad} differ, {len(texts) - len(old)} strings set aside",
          flush=True)
    return bad


def main():
    build, data, model = sys.argv[1:4]
    n = int(sys.argv[4]) if len(sys.argv) > 4 else 50000
    lc.llama_log_set(QUIET, ctypes.c_void_p(0))
    lc.llama_backend_init()
    r = random.Random(1)
    texts = [one_string(r) for _ in range(n)]
    wheel, _, member = model.partition(":")
    bad = 0
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "vocab.gguf")
        for source in sorted(glob.glob(os.path.join(data, "vocab", "*.gguf.xz"))) + [wheel]:
            opened = lzma.open(source) if source != wheel else zipfile.ZipFile(source).open(member)
            with opened as f, open(path, "wb") as g:
                shutil.copyfileobj(f, g)
            bad += compare(build, path, os.path.basename(source), texts)
    gemma = os.path.join(os.path.dirname(wheel), "gemma-3-270m-q4_k_m.gguf")
    bad += compare(build, gemma, "gemma-3-270m", texts)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
