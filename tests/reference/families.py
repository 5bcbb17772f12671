"""Every family and every switch of its config, tiny random models, against two other programs.

usage: families.py BUILD DATA MODEL [--full]

DATA and MODEL are not used. Each case of tests/families/cases.py is written as an HF folder and run
in float32 over a 96-token prompt. Its logits must lie within 2e-5 of the row's range of those that
transformers gives (stored under tests/families/golden with the digest of the weights, made by
tests/families/torch_logits.py) and of mlx-lm's, at every position. Then the same model under the
other spelling of its rope keys and as a GGUF must give the same bits, and 4-bit packed weights
those of their expansion and be invariant (tests/tool_invariance.c). A config changed on one side must be seen.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import gguf
import mlx.core as mx
import numpy as np
from mlx_lm.utils import load_model

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "families"))
import cases  # noqa: E402

BAR = 2e-5


def assay(build, *arguments):
    done = subprocess.run([build / "assay", *map(str, arguments)], capture_output=True, text=True,
                          check=False)
    if done.returncode:
        raise SystemExit(f"assay {' '.join(map(str, arguments))}: {done.stderr}")
    return done.stdout


def our_logits(build, model, ids, arith="f32"):
    with tempfile.TemporaryDirectory() as tmp:
        tokens, out = pathlib.Path(tmp, "tokens"), pathlib.Path(tmp, "logits")
        tokens.write_text(" ".join(map(str, ids)) + "\n")
        done = subprocess.run([build / "tests" / "tool_logits", model, tokens, out, arith],
                              capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{model}: {done.stderr}")
        return np.fromfile(out, dtype="<f4").reshape(len(ids), -1)


def mlx_logits(folder, ids):
    model, _ = load_model(folder)
    model.set_dtype(mx.float32)
    return np.array(model(mx.array([ids]))[0].astype(mx.float32))


def distance(ours, want):
    """Largest difference of any row, in parts of the row's range."""
    ours, want = ours.astype(np.float64), want.astype(np.float64)
    if ours.shape != want.shape or not np.isfinite(ours).all():
        return np.inf
    return float((np.abs(ours - want).max(1) / (want.max(1) - want.min(1))).max())


class Tally:
    def __init__(self):
        self.passed = self.failed = 0

    def say(self, good, text):
        self.passed += bool(good)
        self.failed += not good
        print(("ok   " if good else "FAIL ") + text, flush=True)


def run_case(tally, build, case, tmp):
    config, mlx_serves = cases.CASES[case]
    ids = cases.prompt(case)
    folder = tmp / case
    digest = cases.write_case(case, folder)
    tally.say(digest == cases.digests().get(case), f"{case}: weights are those of the golden")
    ours = our_logits(build, folder, ids)
    far = distance(ours, np.load(cases.golden_path(case)))
    tally.say(far <= BAR, f"{case}: {far:.2g} of the range from transformers")
    if mlx_serves:
        far = distance(ours, mlx_logits(folder, ids))
        tally.say(far <= BAR, f"{case}: {far:.2g} of the range from mlx-lm")
    other = tmp / f"{case}-new"
    cases.write_case(case, other, cases.new_spelling(config))
    tally.say(np.array_equal(ours, our_logits(build, other, ids)),
              f"{case}: rope_parameters give the same bits")
    for form in cases.FORMS.get(case, ()):
        other = tmp / f"{case}-{form}"
        cases.write_case(case, other, form=form)
        tally.say(np.array_equal(ours, our_logits(build, other, ids)),
                  f"{case}: stored {form}, the same bits")
    if cases.has_gguf(config):
        path = tmp / f"{case}.gguf"
        cases.write_gguf(case, path)
        tally.say(np.array_equal(ours, our_logits(build, path, ids)),
                  f"{case}: a GGUF gives the same bits")


def run_packed(tally, build, case, tmp, bits):
    """Packed weights, and the same expanded for either arithmetic."""
    ids = cases.prompt(case)
    name, recipe = f"{case}-packed{bits}", tmp / "recipe.yaml"
    packed = tmp / name
    recipe.write_text(f"why: a proof\nrules:\n  - bits: {bits}\n    group: 32\n")
    assay(build, "quantize", tmp / case, "-o", packed, "--recipe", recipe)
    for arith, expand in (("f32", "f32"), ("mma90", "bf16")):
        flat = tmp / f"{name}-{expand}"
        assay(build, "convert", packed, "-o", flat, "--expand", expand)
        same = np.array_equal(our_logits(build, packed, ids, arith),
                              our_logits(build, flat, ids, arith))
        tally.say(same, f"{name}: equals its expansion in {arith}")
    if cases.CASES[case][1]:
        far = distance(our_logits(build, packed, ids), mlx_logits(tmp / f"{name}-f32", ids))
        tally.say(far <= BAR, f"{name}: {far:.2g} of the range from mlx-lm's expansion")


def run_nvfp4(tally, build, tmp):
    """A GGUF with NVFP4 blocks is the one with their values by Python gguf as F32, and is kept."""
    case, ids = "llama", cases.prompt("llama")
    kind = gguf.GGMLQuantizationType.NVFP4

    def blocks(name, value):
        if value.ndim < 2 or value.shape[1] % 64 or "embd" in name:
            return value, None
        rng = np.random.default_rng(len(name) + value.size)
        raw = rng.integers(0, 256, (value.shape[0], value.shape[1] // 64, 36), dtype=np.uint8)
        raw[..., :4] = rng.integers(0x10, 0x28, raw[..., :4].shape)  # scales about those of `value`
        return raw.reshape(value.shape[0], -1), kind

    def values(name, value):
        value, packed = blocks(name, value)
        return (gguf.quants.dequantize(value, kind) if packed else value), None

    packed, flat, kept = (tmp / name for name in ("nvfp4.gguf", "nvfp4-f32.gguf", "nvfp4-kept"))
    cases.write_gguf(case, packed, blocks)
    cases.write_gguf(case, flat, values)
    assay(build, "convert", packed, "-o", kept)
    for arith in ("f32", "mma90"):
        want = our_logits(build, flat, ids, arith)
        tally.say(np.isfinite(want).all() and want.std() > 0, f"NVFP4: numbers in {arith}")
        for what, path in (("blocks", packed), ("kept", kept)):
            tally.say(np.array_equal(our_logits(build, path, ids, arith), want),
                      f"NVFP4 {what}: the bits of their values in {arith}")
    listed = json.loads(assay(build, "inspect", kept, "--json"))
    tally.say(sum(t["format"] == "nvfp4" for t in listed["tensors"]) == 19, "NVFP4: 19 are kept")
    # What multiplies a whole matrix is not read: it must not be passed over.
    for stored in ("blk.0.attn_q.scale", "blk.1.ffn_up.scale", "output.scale"):
        cases.write_gguf(case, packed, blocks, {stored: np.ones(1, np.float32)})
        done = subprocess.run([build / "assay", "infer", "--plan", "-m", packed], text=True,
                              capture_output=True, check=False)
        tally.say(done.returncode == 3 and stored in done.stderr,
                  f"NVFP4: a matrix's own scale is refused by name: {done.stderr.strip()}")


def run_invariance(tally, build, case, tmp):
    """Rows and pages do not know how they were fed; the tool shows that faults are seen."""
    model = tmp / f"{case}-wide"
    cases.write_case(case, model, base=cases.wide(case))
    done = subprocess.run([build / "tests" / "tool_invariance", model], capture_output=True,
                          text=True, check=False)
    tally.say(done.returncode == 0, f"{case}: invariant {'' if not done.returncode else done.stdout}")


FAULTS = [  # case, change: what a wrong reading of a config would do
    ("llama", {"rope_theta": 10100.0}),
    ("mistral-window", {"sliding_window": 41}),
    ("qwen2-window", {"max_window_layers": 2}),
    ("qwen3-window", {"sliding_window": 34}),
    ("gemma2", {"attn_logit_softcapping": 2.01}),
    ("gemma2", {"final_logit_softcapping": 3.01}),
    ("gemma3", {"rope_local_base_freq": 1010.0}),
    ("gemma3", {"sliding_window_pattern": 2}),
    ("gemma3", {"query_pre_attn_scalar": 24.1}),
    ("gemma4", {"sliding_window": 39}),
    ("gemma4", {"final_logit_softcapping": 3.01}),
    ("gemma4", {"rope_parameters": {**cases.GEMMA4["rope_parameters"], "full_attention": {
        "rope_type": "proportional", "rope_theta": 1e5, "partial_rotary_factor": 0.5}}}),
    ("gemma4-experts", {"top_k_experts": 2}),
    ("gemma4-shared", {"sliding_window": 39}),
    ("llama-yarn", {"rope_scaling": {**cases.YARN, "factor": 4.1}}),
    ("mixtral-window", {"sliding_window": 41}),
    ("mixtral", {"num_experts_per_tok": 1}),
    ("qwen3-moe", {"norm_topk_prob": False}),
    ("qwen3-moe-raw", {"norm_topk_prob": True}),
    ("qwen3-moe", {"num_experts_per_tok": 2}),
    ("qwen3-moe-window", {"sliding_window": 34}),
]


def run_fault(tally, build, case, change, tmp):
    config = json.loads(json.dumps(cases.CASES[case][0]))
    cases.text_config(config).update(change)
    folder = tmp / f"{case}-fault-{next(iter(change))}"
    cases.write_case(case, folder, config)
    far = distance(our_logits(build, folder, cases.prompt(case)), np.load(cases.golden_path(case)))
    tally.say(far > 10 * BAR, f"{case}: {change} is seen, {far:.2g} of the range")


def main():
    build = pathlib.Path(sys.argv[1])
    mx.set_default_device(mx.cpu)
    tally = Tally()
    with tempfile.TemporaryDirectory() as scratch:
        tmp = pathlib.Path(scratch)
        for case in cases.CASES:
            run_case(tally, build, case, tmp)
        for case in cases.PACKED:
            for bits in (4, 8) if case in cases.FORMS else (4,):
                run_packed(tally, build, case, tmp, bits)
            run_invariance(tally, build, case, tmp)
        for case, change in FAULTS:
            run_fault(tally, build, case, change, tmp)
        run_nvfp4(tally, build, tmp)
    print(f"{tally.passed} passed, {tally.failed} failed, 0 skipped")
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
