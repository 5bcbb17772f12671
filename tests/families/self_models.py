"""A packed tiny model of every family, with the text side that `assay compare --self` needs.

Used by tests/reference/families_self.py on the CPU and by tests/gpu/families.py for a device. The
models are those of cases.py and gpt_oss_cases.py but for the vocabulary of tests/tiny_text.h, a
context of 512, and feed-forward parts whose sums have several chunks. Prompts pass the pages of 64
tokens, every window and a split of attention; two share their second page but not their first; one
is a conversation, whose second turn finds the first one's pages.
"""
import json
import shutil
import subprocess
import tempfile

import cases
import gpt_oss_cases

VOCAB = 261  # of tests/tiny_text.h
AFFINE = "why: a proof\nrules:\n  - bits: {}\n    group: 32\n"
BLOCKS = AFFINE.format(8) + "  - role: expert\n    format: {}\n"
# name: (case, recipe)
MODELS = {f"{case}-q4": (case, AFFINE.format(4)) for case in (
    "llama", "mistral-window", "qwen2", "qwen3", "gemma2", "gemma3", "gemma4", "mixtral",
    "qwen3-moe", "gemma4-experts", "gemma4-e2b")} | {
    f"gpt-oss-{form}": ("gpt-oss", BLOCKS.format(form)) for form in ("mxfp4", "mxfp8", "nvfp4")}


def pack(build, source, to, recipe):
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as f:
        f.write(recipe)
        f.flush()
        subprocess.run([build / "assay", "quantize", source, "-o", to, "--recipe", f.name],
                       check=True, stderr=subprocess.DEVNULL)


def config_of(case):
    if case in gpt_oss_cases.CASES:
        config = {**gpt_oss_cases.CASES[case][0], "intermediate_size": 288,
                  "max_position_embeddings": 512}
    else:
        config = cases.wide(case)
    config["vocab_size"] = VOCAB
    for key, value in (("vocab_size_per_layer_input", VOCAB), ("moe_intermediate_size", 288)):
        if key in config:
            config[key] = value
    return config


def write_text(build, folder):
    """A folder with the files of the text side."""
    tool = next(p for p in (build / "tests" / "tool_tiny", build / "tool_tiny") if p.exists())
    subprocess.run([tool, folder, "text=1"], check=True)


def write(build, name, folder, text):
    """A model of MODELS in `folder`, with the files of `text` and its prompts, p.jsonl."""
    case, recipe = MODELS[name]
    source = folder.parent / f"{folder.name}-dense"
    if case in gpt_oss_cases.CASES:
        gpt_oss_cases.write(case, source, "hf", config_of(case))
    else:
        cases.write_case(case, source, base=config_of(case))
    pack(build, source, folder, recipe)
    shutil.rmtree(source)
    for part in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(text / part, folder / part)
    (folder / "p.jsonl").write_text(prompts())


def prompts():
    """Lines of a prompt file, as tests/self_rig.h makes them."""
    def long(i, n):
        return "".join(chr(97 + (j * (3 + i if j < 64 else 5) + j // 7) % 26) for j in range(n))

    lines = [{"custom_id": f"long{i}", "max_tokens": 3, "prompt": long(i, n)}
             for i, n in enumerate((270, 140))]
    lines += [{"custom_id": "draw", "prompt": "the cat", "max_tokens": 3, "temperature": 1,
               "seed": 3},
              {"custom_id": "talk", "turns": [long(2, 70), "two"], "max_tokens": 3}]
    return "".join(json.dumps(line) + "\n" for line in lines)
