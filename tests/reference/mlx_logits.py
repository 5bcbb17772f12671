"""Logits against mlx-lm in float32.

usage: mlx_logits.py BUILD_DIR MODEL_F32_DIR [OUR_MODEL]

MODEL_F32_DIR is an HF folder with float32 weights. Both sides run it, or ours runs OUR_MODEL (the
packed checkpoint that the folder was expanded from). 20 prompts, 512 positions in all. Then tiny
random models: biases, a tied head, rope scaling of each kind, and one whose config is changed on one
side, which must be seen. For every position the largest difference must stay within 1e-3 of the
row's logit range, and the first choice must agree wherever mlx-lm's margin is larger than that.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import mlx.core as mx
import numpy as np
from mlx_lm.utils import load_model
from tokenizers import Tokenizer

BAR = 1e-3
POSITIONS = 512
TEXTS = [
    "The Middle Ages began when the Western Roman Empire fell, and ended with the Renaissance.",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) + fib",
    "In the beginning the universe was created. This made a lot of people very angry.",
    "Ein Hund und eine Katze saßen vor dem Haus und warteten auf den Regen, der nicht kam.",
    "2 + 2 = 4, 3 + 3 = 6, 4 + 4 = 8, 5 + 5 = 10, 6 + 6 = 12, 7 + 7 =",
    "Water boils at 100 degrees Celsius at sea level, but on a high mountain it boils at",
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "{\"name\": \"Alice\", \"age\": 30, \"email\": \"alice@example.com\", \"tags\": [\"a\", \"b\"",
    "To be, or not to be, that is the question: whether 'tis nobler in the mind to suffer",
    "SELECT name, COUNT(*) FROM orders JOIN customers ON orders.customer_id = customers.id",
    "Le chat est assis sur la table et regarde par la fenêtre les oiseaux dans le jardin.",
    "The quick brown fox jumps over the lazy dog. The quick brown fox jumps over the lazy",
    "Once upon a time, in a village by the sea, there lived a girl who could talk to fish.",
    "Photosynthesis turns carbon dioxide and water into sugar and oxygen by means of light.",
    "#include <stdio.h>\n\nint main(void)\n{\n    printf(\"hello, world\\n\");\n    return 0;\n}\n",
    "東京は日本の首都であり、世界で最も人口の多い都市圏の一つである。",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "!!! ??? ... ;;; ::: --- +++ === *** ### $$$ %%% &&& @@@ ~~~ ^^^ ||| <<< >>> ///",
    "Dear Sir or Madam, I am writing to complain about the delivery of my order, which was",
    "My favourite recipe needs two eggs, a cup of flour, a pinch of salt and a glass of milk.",
]


def choose_prompts(folder):
    """Twenty token lists of POSITIONS tokens together; the last texts fill up what is short."""
    tok = Tokenizer.from_file(str(folder / "tokenizer.json"))
    lists = [tok.encode(t, add_special_tokens=False).ids for t in TEXTS]
    left, out = POSITIONS, []
    for i, ids in enumerate(lists):
        share = left // (len(lists) - i)
        ids = (ids * (share // len(ids) + 1))[:share]
        out.append(ids)
        left -= len(ids)
    assert left == 0 and all(out)
    return out


def our_logits(build, model, prompts, n_vocab):
    with tempfile.TemporaryDirectory() as tmp:
        tokens, out = pathlib.Path(tmp) / "tokens", pathlib.Path(tmp) / "logits"
        tokens.write_text("".join(" ".join(map(str, p)) + "\n" for p in prompts))
        subprocess.run([build / "tests" / "tool_logits", model, tokens, out, "f32"], check=True)
        flat = np.fromfile(out, dtype="<f4").reshape(-1, n_vocab)
    ends = np.cumsum([len(p) for p in prompts])
    assert ends[-1] == len(flat)
    return np.split(flat, ends[:-1])


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
TINY = [  # name, arguments of tool_tiny, changes to the config that only mlx-lm sees
    ("plain", {}, {}),
    ("tied", {"tied": 1}, {}),
    ("biases", {"biases": 1}, {}),
    ("linear rope", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, {}),
    ("llama3 rope", {"rope_scaling": LLAMA3}, {}),
    ("mistral", {"window": 1000}, {}),
]


class Tally:
    def __init__(self):
        self.passed = self.failed = self.undecided = 0
        self.worst = 0.0

    def add(self, model, prompts, ours):
        """Compares every row; returns how many failed."""
        before = self.failed
        for ids, mine in zip(prompts, ours):
            ref = np.array(model(mx.array([ids]))[0].astype(mx.float32), dtype=np.float64)
            for row, want in zip(mine.astype(np.float64), ref):
                span = want.max() - want.min()
                diff = np.abs(row - want).max() / span
                second, first = np.sort(want)[-2:]
                decided = first - second > BAR * span
                same = row.argmax() == want.argmax()
                self.worst = max(self.worst, diff) if np.isfinite(diff) else np.inf
                self.undecided += not decided
                good = diff <= BAR and (same or not decided)
                self.passed += good
                self.failed += not good
        return self.failed - before


def run_model(build, folder, ours_path, prompts, changes=None):
    config = json.loads((folder / "config.json").read_text())
    model, _ = load_model(folder, model_config=changes or {})
    model.set_dtype(mx.float32)
    tally = Tally()
    tally.add(model, prompts, our_logits(build, ours_path, prompts, config["vocab_size"]))
    return tally


def run_tiny(build, arguments, changes):
    rng = np.random.default_rng(1)
    prompts = [rng.integers(0, 320, n).tolist() for n in (1, 60, 300)]
    with tempfile.TemporaryDirectory() as tmp:
        folder = pathlib.Path(tmp) / "tiny"
        words = [f"{k}={json.dumps(v)}" for k, v in arguments.items()]
        subprocess.run([build / "tests" / "tool_tiny", folder, *words], check=True)
        return run_model(build, folder, folder, prompts, changes)


def main():
    build, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    mx.set_default_device(mx.cpu)
    passed = failed = 0
    for name, arguments, changes in TINY:
        t = run_tiny(build, arguments, changes)
        print(f"tiny, {name}: largest difference {t.worst:.3g} of the logit range")
        passed += t.passed
        failed += t.failed
    # The comparison must be able to fail: one side turns by another base.
    t = run_tiny(build, {}, {"rope_theta": 10500.0})
    print(f"tiny, another rope base on one side: {t.failed} positions seen to differ")
    passed += t.failed > 200
    failed += t.failed <= 200
    t = run_model(build, folder, sys.argv[3] if len(sys.argv) > 3 else folder,
                  choose_prompts(folder))
    print(f"{folder.name}: largest difference {t.worst:.3g} of the logit range, bar {BAR:g}; "
          f"{t.undecided} positions without a clear first choice")
    failed += t.failed + (t.passed + t.failed != POSITIONS)
    print(f"{passed + t.passed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
