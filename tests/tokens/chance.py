"""Small tokenizers put together by chance from everything that is supported."""
import contextlib
import os

REGEXES = [
    r"\s+",
    r"\p{L}+",
    r"'s|'t|\p{L}+| ?\p{N}{1,3}|\s+(?!\S)|\s+",
    r"[^\s\p{L}\p{N}]+",
    r"(?i:ab?)+",
    r"a*",
    r"[^\n]+|[\n]+",
    r"(?<=a)b",
    r"\p{Lu}|[\p{M}\p{P}]",
    r"[\r\n]|\d+",
    r"\S",
    r"\P{L}+?",
    r"x{2}|.",
    r"^a|b$",
    r"[a-c\-x]+",
    r"(?i)AB",
    r"[\s\p{P}]",
    r"\x41|\u00e9|[\x{300}-\x{36f}]",
    r"[\S]+",
    r"a?+b|a++",
    r"\p{^L}",
]
BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]


def pattern(r, empty=True):
    """empty=False: none that matches nothing: what the library inserts so at the very beginning it
    puts behind a prefix that is added later."""
    if r.random() < 0.4:
        return {"String": r.choice([" ", "a", "ab", "▁", "aa", ".", "\n", "é"])}
    return {"Regex": r.choice([x for x in REGEXES if empty or x != "a*"])}


def flip(r):
    return r.random() < 0.5


def random_normalizer(r, depth=0):
    kind = r.randrange(6 if depth < 2 else 4)
    if kind == 0:
        return None
    if kind == 1:
        return {"type": "NFC"}
    if kind == 2:
        return {"type": "Prepend", "prepend": r.choice(["▁", " ", "ab"])}
    if kind == 3:
        return {
            "type": "Replace",
            "pattern": pattern(r, False),
            "content": r.choice(["", "▁", "a", "bb", "é"]),
        }
    return {
        "type": "Sequence",
        "normalizers": [x for x in (random_normalizer(r, depth + 1) for _ in range(2)) if x],
    }


def random_pretokenizer(r, first, depth=0):
    """first: nothing before it moves text, so that "first" is the beginning for both."""
    kind = r.randrange(10 if depth < 2 else 8)
    if kind == 0:
        return None
    if kind <= 2:
        return {
            "type": "Split",
            "pattern": pattern(r),
            "behavior": r.choice(BEHAVIORS),
            "invert": flip(r),
        }
    if kind == 3:
        return {
            "type": "ByteLevel",
            "add_prefix_space": flip(r),
            "trim_offsets": flip(r),
            "use_regex": flip(r),
        }
    if kind == 4:
        return {
            "type": "Metaspace",
            "replacement": r.choice("▁_"),
            "split": flip(r),
            "prepend_scheme": r.choice(["first", "never", "always"][not first :]),
        }
    if kind == 5:
        return {"type": "Digits", "individual_digits": flip(r)}
    if kind == 6:
        return {"type": "Punctuation", "behavior": r.choice(BEHAVIORS)}
    if kind == 7:
        return {"type": r.choice(["Whitespace", "WhitespaceSplit"])}
    return {
        "type": "Sequence",
        "pretokenizers": [
            x
            for x in (
                random_pretokenizer(r, first and i == 0, depth + 1) for i in range(2 + (depth == 0))
            )
            if x
        ],
    }


def random_decoder(r):
    if r.random() < 0.15:
        return None
    stages = []
    for _ in range(r.randrange(4)):
        stages.append(
            r.choice(
                [
                    {"type": "Replace", "pattern": pattern(r), "content": r.choice([" ", "", "b"])},
                    {"type": "ByteFallback"},
                    {
                        "type": "Strip",
                        "content": r.choice(" ab"),
                        "start": r.randrange(3),
                        "stop": 0,
                    },
                    {
                        "type": "Metaspace",
                        "replacement": "▁",
                        "prepend_scheme": r.choice(["first", "never", "always"]),
                    },
                ]
            )
        )
    if flip(r):
        stages.append(
            r.choice(
                [
                    {"type": "Fuse"},
                    {
                        "type": "ByteLevel",
                        "add_prefix_space": True,
                        "trim_offsets": True,
                        "use_regex": True,
                    },
                ]
            )
        )
        if flip(r):
            stages.append(
                {
                    "type": "Strip",
                    "content": r.choice(" a"),
                    "start": r.randrange(3),
                    "stop": r.choice([0, 0, 1]),
                }
            )
    return {"type": "Sequence", "decoders": stages}


def random_tokenizer(r):
    alphabet = "abcxABs' \n.,12é▁_-Ģ̇́"
    pieces = list(alphabet)[: r.randrange(6, len(alphabet) + 1)]
    merges = []
    for _ in range(r.randrange(40)):
        a, b = r.choice(pieces), r.choice(pieces)
        if a + b not in pieces:
            pieces.append(a + b)
        merges.append([a, b])
    lost = r.choice([0, 0, 3, 7])
    if r.random() < 0.4:
        pieces += ["<0x%02X>" % b for b in range(256) if not lost or b % lost]
    if flip(r):
        pieces += ["<unk>"]
    for i in range(r.randrange(3)):
        pieces += ["whole%d ab" % i, "abab"][: 2 - i]
    pieces = list(dict.fromkeys(pieces))
    vocab = {p: i for i, p in enumerate(pieces)}
    added, seen = [], set()
    normalizer = random_normalizer(r)
    for _ in range(r.randrange(8)):
        c = r.choice(
            [
                "<s>",
                "<s",
                "s>",
                "<|x|>",
                "<|x|><s>",
                "word",
                "a",
                "ab",
                "\n\n",
                "  ",
                "▁▁",
                "é",
                "<t> ",
                "x",
                "abab",
                " <t",
                " a",
            ]
        )
        special = flip(r) and c[0] == "<"
        if c in seen:
            continue
        seen.add(c)
        top = max([len(vocab) - 1] + [x["id"] for x in added])
        added.append(
            {
                "id": vocab.get(c, top + 1),
                "content": c,
                "single_word": r.random() < 0.2,
                "lstrip": r.random() < 0.3,
                "rstrip": r.random() < 0.3,
                "special": special,
                # The library does not skip a special token that its normalizer changes; we do.
                "normalized": r.random() < 0.4 and not (special and normalizer),
            }
        )
    template = {
        "type": "TemplateProcessing",
        "pair": [],
        "special_tokens": {"q": {"id": "q", "ids": [0, 1], "tokens": ["a", "b"]}},
        "single": r.choice([[], [{"SpecialToken": {"id": "q", "type_id": 0}}]])
        + [{"Sequence": {"id": "A", "type_id": 0}}]
        + r.choice([[], [{"SpecialToken": {"id": "q", "type_id": 0}}]]),
    }
    template["pair"] = [
        {"Sequence": {"id": "A", "type_id": 0}},
        {"Sequence": {"id": "B", "type_id": 0}},
    ]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": True,
        "trim_offsets": True,
        "use_regex": True,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": random_pretokenizer(r, not normalizer),
        "post_processor": r.choice(
            [None, byte_level, template, {"type": "Sequence", "processors": [byte_level, template]}]
        ),
        "decoder": random_decoder(r),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>" if "<unk>" in vocab and flip(r) else None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": flip(r),
            "byte_fallback": flip(r),
            "ignore_merges": r.random() < 0.3,
            "vocab": vocab,
            "merges": merges,
        },
    }


def small_text(r, spec):
    added = [x["content"] for x in spec["added_tokens"]] or ["<s>"]
    units = list("abcxABs' \n.,12é▁_-Ģ̇́漢") + [
        "ab",
        "aa",
        "  ",
        "\u00a0",
        "\u3000",
        "e\u0301",
        "whole0 ab",
        "🦙",
        "٣",
        "!",
    ]
    return "".join(
        r.choice(added) if r.random() < 0.2 else r.choice(units) for _ in range(r.randrange(14))
    )


@contextlib.contextmanager
def quiet():
    """Where the library panics it prints, whoever catches it."""
    keep, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(keep, 2)
        os.close(keep)
        os.close(null)
