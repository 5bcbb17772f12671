"""Strings for tokenizers: the scripts of the world, emoji, controls, code, long runs, added tokens.

A string comes from one of KINDS, all by a generator that is given, so that a seed names it.
"""
WORDS = """the quick brown fox jumps over Hello WORLD don't I'll we've it's they're 'S 'LL I'M
HTTPServer camelCase snake_case __init__ 3.14159 1,000,000 2024-01-31 0xDEADBEEF 1e-9 $5.00 50%
naïve café Ärger straße œuvre señor façade e\u0301 o\u0308 ñ İstanbul ﬁne ﬀ ŉ ǆ ſ 'ſ K Å Ω
привет МИР нещо на Български зачем ελληνικά Ώρα γειά שלום עולם مرحبا بالعالم هَٰذَا فارسی हिन्दी
नमस्ते क्षत्रिय বাংলা ਪੰਜਾਬੀ ગુજરાતી தமிழ் తెలుగు ಕನ್ನಡ മലയാളം සිංහල ไทย ภาษาไทย ລາວ မြန်မာ ខ្មែរ
ქართული հայերեն አማርኛ 日本語 カタカナ ひらがな 漢字 中文 你好世界 한국어 안녕 ᄒ\u1161ᆫ 가\u11a8 ᠮᠣᠩᠭᠣᠯ བོད་ཡིག
🦙 👍🏽 👨‍👩‍👧‍👦 🇩🇪🇫🇷 ❤️ ☃ ⚡ ✨ 🏳️‍🌈 １２３ ４５６ ٣٤٥ ४५६ Ⅷ ½ ² ₃ ① 𝟘𝟙 𝔘𝔫𝔦 𐍈 𓀀 𒀀 ꧁ ܫܠܡܐ ߒߞߏ ␣ ▁ ▁▁ Ġ Ċ Ā <0x41>
<0xE2> <unk> </s> <s> [INST] <|im_start|> <|endoftext|> <bos> \u180e \u200b \u200d \ufeff \u2028 \ufffd
""".split()
SPACES = [
    " ", " ", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\n ", "\t\t", "\u00a0",
    "\u3000", "\u2003", "\x0b", "\x0c", "\x85", "\u1680", "\u202f", "\u180e", "\u2028", "",
]
CODE = [
    "def f(x):\n    return x+1\n",
    "for (int i = 0; i < n; i++) {\n\ta[i] += 2;\n}\n",
    "a=b;c&&d",
    '<div class="x">&nbsp;</div>',
    "SELECT * FROM t WHERE a='b';",
    '{"k": [1, 2.5e3, null]}',
    "/* c */ // d\n#include <x.h>",
    "$ ls -la | grep '^d' > /dev/null 2>&1",
    "https://x.y/z?a=b#c",
    "'''doc'''",
    "x->y::z!==w",
    "\\n\\t\\\\",
    "C:\\Users\\x",
    "====----****",
    "((((()))))",
    "...?!?!",
]
MARKS = [
    0x300, 0x301, 0x316, 0x327, 0x345, 0x591, 0x64B, 0x651, 0x93C, 0x94D, 0xE38, 0xF71, 0xF74,
    0x1AB0, 0x1DC0, 0x20D0, 0x3099, 0x302A, 0xFB1E, 0xFE20, 0x1D165, 0x1E8D0, 0x8CA, 0x1DFA,
    0x11F41, 0x11930, 0x11935, 0x7FD, 0x1ABF, 0x10EAB, 0x334, 0x338,
]
BLOCKS = [
    (0x20, 0x7E), (0xA0, 0x24F), (0x250, 0x52F), (0x530, 0x8FF), (0x900, 0xDFF), (0xE00, 0x10FF),
    (0x1100, 0x13FF), (0x1400, 0x1FFF), (0x2000, 0x2BFF), (0x2C00, 0x33FF), (0x4E00, 0x9FFF),
    (0xA000, 0xABFF), (0xAC00, 0xD7A3), (0xF900, 0xFFFF), (0x10000, 0x12FFF), (0x13000, 0x16FFF),
    (0x1D000, 0x1DFFF), (0x1E000, 0x1EEFF), (0x1F000, 0x1FAFF), (0x20000, 0x323AF),
    (0xE0000, 0xE01EF), (0x1C80, 0x1CFF), (0xA7C0, 0xA7FF), (0x10D40, 0x10DFF), (0x11380, 0x113FF),
    (0x11F00, 0x11F5F), (0x16100, 0x1613F), (0x16D40, 0x16D7F), (0x1E030, 0x1E0AF),
    (0x1E4D0, 0x1E5FF), (0x0, 0x10FFFF),
]

# Controls and what is not seen: C0, C1, soft hyphen, joiners, directions, selectors, tags,
# annotations, private use and code points that are no characters.
CONTROLS = [
    *range(0x20), *range(0x7F, 0xA1), 0xAD, 0x34F, 0x61C, 0x115F, 0x17B4, 0x180E,
    *range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2060, 0x2070), 0x3164,
    *range(0xFE00, 0xFE10), 0xFEFF, 0xFFA0, *range(0xFFF9, 0xFFFE), 0x1D173, 0xE0001,
    *range(0xE0020, 0xE0080), 0xE0100, 0xFDD0, 0xFFFE, 0xFFFF, 0x1FFFE, 0xF0000, 0x10FFFF,
]
FACES = "\U0001f600\U0001f602\U0001f970\U0001f644\U0001fae0\U0001f9d1\U0001f469\U0001f468" \
    "\U0001f44d\U0001f590\u270c\u2764\u2600\u26a1\u2708\U0001f3f3\U0001f3f4\U0001f408\U0001f999" \
    "\U0001f680\u00a9\u203c\u3297"


def of_words(r):
    return "".join(r.choice(WORDS) + r.choice(SPACES) for _ in range(r.randrange(1, 16)))


def of_bytes(r):
    return bytes(r.randrange(256) for _ in range(r.randrange(1, 60))).decode("utf-8", "replace")


def of_block(r):
    lo, hi = r.choice(BLOCKS)
    plain = r.choice([0, 0.3])  # beside plain text it shows in the ids where a class ends
    return "".join(
        r.choice(["'s", "'ll", "!!", "...", " ", "ab", "12", "\n", " the"])
        if r.random() < plain else chr(c)
        for c in (r.randint(lo, hi) for _ in range(r.randrange(1, 40)))
        if not 0xD800 <= c < 0xE000
    )


def of_scripts(r):
    """Words of several scripts that touch, some in another case."""
    words = (r.choice(WORDS) for _ in range(r.randrange(2, 10)))
    return "".join(r.choice([str, str, str.upper, str.title])(w) for w in words)


def of_spaces(r):
    return "".join(r.choice(SPACES) for _ in range(r.randrange(1, 12))) + r.choice(WORDS + [""])


def of_code(r):
    return r.choice(CODE) * r.randrange(1, 4) + r.choice(SPACES) + r.choice(CODE)


def of_runs(r):
    """Runs of one thing: of up to 400 characters, a few of up to 6000, some between words."""
    unit = r.choice(WORDS + CODE + SPACES[:-1] + ["a", "=", "\u2581", "0", "-", "\U0001f602"])
    most = 6000 if r.randrange(60) == 0 else 400
    run = (unit * r.randrange(1, most // 2))[:most]
    return run if r.random() < 0.7 else r.choice(WORDS) + run + r.choice(WORDS)


def of_digits(r):
    return "".join(
        str(r.randrange(10 ** r.randrange(1, 12)))
        + r.choice([" ", ",", ".", "", "\u0663", "e"])
        for _ in range(r.randrange(1, 8))
    )


def of_marks(r):
    return "".join(
        chr(r.choice(MARKS)) if r.random() < 0.6 else r.choice("aeo가क็\u1100\u1161Ω ")
        for _ in range(r.randrange(1, 30))
    )


def of_controls(r):
    return "".join(
        chr(r.choice(CONTROLS)) if r.random() < 0.5 else r.choice(WORDS + SPACES)
        for _ in range(r.randrange(1, 24))
    )


def of_emoji(r):
    """Sequences: with skin tones, joined, selected as text or picture, key caps and flags."""

    def one():
        face = r.choice(FACES)
        kind = r.randrange(7)
        if kind == 0:
            return face + chr(0x1F3FB + r.randrange(5))
        if kind == 1:
            return face + "\ufe0f\u200d" + r.choice(FACES) + r.choice(["", "\ufe0f"])
        if kind == 2:
            return "\u200d".join(r.choice(FACES) for _ in range(r.randrange(2, 5)))
        if kind == 3:
            return r.choice("0123456789#*") + "\ufe0f\u20e3"
        if kind == 4:
            return "".join(chr(0x1F1E6 + r.randrange(26)) for _ in range(r.randrange(1, 5)))
        if kind == 5:
            letters = "".join(chr(0xE0061 + r.randrange(26)) for _ in range(5))
            return "\U0001f3f4" + letters + "\U000e007f"
        return face + r.choice(["", "\ufe0e", "\ufe0f"])

    return "".join(one() + r.choice(["", "", " ", "!", "ok"]) for _ in range(r.randrange(1, 12)))


def with_slots(r):
    """Slots \\ue000, one or several together, where an added token, or nearly one, is put later."""
    parts = [r.choice(WORDS + ["", " ", "\n"]) + r.choice(SPACES) for _ in range(r.randrange(1, 6))]
    return "\ue000".join(parts + [""] * r.randrange(4))


KINDS = [of_words, of_words, of_words, of_bytes, of_block, of_block, of_scripts, of_spaces, of_code,
         of_runs, of_digits, of_marks, of_controls, of_emoji, with_slots, with_slots, with_slots]


def one_string(r):
    return r.choice(KINDS)(r)


def fill(r, text, added):
    out = text.split("\ue000")
    for i in range(len(out) - 1):
        token = r.choice(added)
        miss = r.randrange(6)
        if miss == 0:
            token = token[:-1]
        elif miss == 1:
            token = token[1:]
        elif miss == 2:
            k = r.randrange(len(token) + 1)
            token = token[:k] + r.choice([" ", "x", "<", "\u0301"]) + token[k:]
        out[i] += token
    return "".join(out)
