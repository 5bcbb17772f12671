"""A tokenizer for Python `tokenizers` from a GGUF's keys, with none of our code.

The rules: type 2 and 3 are control tokens, 4 is matched in any text; "gpt2" is byte-level BPE cut
by the pattern that its pre-tokenizer's name stands for; "llama" joins the pair with the best score,
which is all cuts of all tokens ranked by score; "gemma4" is BPE over lines.
"""
import struct

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
END = r"\s*[\r\n]+|\s+(?!\S)|\s+"
CUTS = {
    "llama-bpe": SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + END,
    "qwen2": SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + END,
    "qwen35": SHORT + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + END,
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
}
BOS = {"llama-bpe": True}


SIZES = "BbHhIif?sAQqd"  # by GGUF's number of a type; s and A are strings and arrays


def read_keys(path):
    """The keys alone; the gguf package takes 20 times as long for a vocabulary."""
    with open(path, "rb") as f:
        def one(kind):
            code = SIZES[kind]
            if code == "s":
                return f.read(struct.unpack("<Q", f.read(8))[0]).decode("utf-8", "replace")
            if code == "A":
                of, n = struct.unpack("<IQ", f.read(12))
                if SIZES[of] in "sA":
                    return [one(of) for _ in range(n)]
                return list(struct.unpack(f"<{n}{SIZES[of]}", f.read(n * struct.calcsize(SIZES[of]))))
            return struct.unpack("<" + code, f.read(struct.calcsize(code)))[0]

        magic, version, _, n_keys = struct.unpack("<4sIQQ", f.read(24))
        assert magic == b"GGUF" and version in (2, 3)
        return {one(8): one(struct.unpack("<I", f.read(4))[0]) for _ in range(n_keys)}


def scored_merges(tokens, types, scores):
    ids = {t: i for i, t in enumerate(tokens) if types[i] in (1, 4)}
    cuts = []
    for text, i in ids.items():
        for at in range(1, len(text)):
            if text[:at] in ids and text[at:] in ids:
                cuts.append((-scores[i], i, ids[text[:at]], (text[:at], text[at:])))
    cuts.sort(key=lambda c: c[:3])
    return [c[3] for c in cuts]


def pre_tokenizer(name):
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if name == "smollm":
        first = [pre_tokenizers.Split(Regex(r"\p{N}"), "isolated"),
                 pre_tokenizers.Split(Regex(CUTS["gpt-2"]), "isolated")]
    else:
        first = [pre_tokenizers.Split(Regex(CUTS[name]), "isolated")]
    return pre_tokenizers.Sequence([*first, level])


def stages(t, kind, pre, prefix):
    if kind == "gpt2":
        t.pre_tokenizer = pre_tokenizer(pre)
        t.decoder = decoders.ByteLevel()
        return
    to_mark, from_mark = normalizers.Replace(" ", "\u2581"), decoders.Replace("\u2581", " ")
    t.normalizer = to_mark
    steps = [from_mark, decoders.ByteFallback(), decoders.Fuse()]
    if prefix:
        t.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), to_mark])
        steps.append(decoders.Strip(" ", 1, 0))
    if kind == "gemma4":
        t.pre_tokenizer = pre_tokenizers.Split(Regex(r"[^\n]+|[\n]+"), "isolated")
    t.decoder = decoders.Sequence(steps)


def make(path):
    keys = read_keys(path)

    def key(name, otherwise=None):
        return keys.get("tokenizer." + name, otherwise)

    kind, pre = key("ggml.model"), key("ggml.pre")
    tokens, types = key("ggml.tokens"), key("ggml.token_type")
    if kind == "llama":
        merges = scored_merges(tokens, types, key("ggml.scores"))
    elif kind == "gemma4":  # a token may begin with a space, or be one
        merges = [(m[:m.index(" ", 1)], m[m.index(" ", 1) + 1:]) for m in key("ggml.merges")]
    else:
        merges = [tuple(m.split(" ")) for m in key("ggml.merges")]
    last = len(tokens)
    while kind == "gpt2" and types[last - 1] in (3, 4):
        last -= 1  # no piece of plain text is looked up as one of these
    spelled = kind != "gpt2"
    t = Tokenizer(models.BPE(
        {x: i for i, x in enumerate(tokens[:last])}, merges, byte_fallback=spelled,
        fuse_unk=spelled, unk_token=tokens[key("ggml.unknown_token_id", 0)] if spelled else None,
        ignore_merges=pre == "llama-bpe"))
    stages(t, kind, pre, kind == "llama" and key("ggml.add_space_prefix", True))
    added = [i for i in range(len(tokens)) if types[i] in (2, 3, 4)]
    t.add_tokens([AddedToken(tokens[i], normalized=False, special=types[i] != 4) for i in added])
    if any(t.token_to_id(tokens[i]) != i for i in added):
        raise SystemExit("an added token got another id")
    if key("ggml.add_bos_token", kind == "llama" or BOS.get(pre, False)):
        bos = tokens[key("ggml.bos_token_id", 1)]
        t.post_processor = TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, key("ggml.bos_token_id", 1))])
    return t
