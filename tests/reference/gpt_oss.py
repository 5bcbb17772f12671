"""gpt-oss in every switch and storage form, tiny random models, against two other programs.

usage: gpt_oss.py BUILD DATA MODEL [--full]

DATA and MODEL are not used. Each case of tests/families/gpt_oss_cases.py is run in float32 over a
96-token prompt. Its logits must lie within 2e-5 of the row's range of those of transformers
(goldens by tests/families/torch_gpt_oss.py, with the digest of the weights) and of mlx-lm's where
that is a reference. Then the other forms of the experts, the other spelling of the rope keys and a
GGUF must give the same bits, in both arithmetics; so must what convert writes of them: mxfp4 kept,
and expanded. A config changed on one side must be seen.
"""
import json
import pathlib
import sys
import tempfile

import mlx.core as mx
import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "families")]
import gpt_oss_cases as cases  # noqa: E402
from families import BAR, Tally, assay, distance, mlx_logits, our_logits  # noqa: E402

FAULTS = [  # case, change: what a wrong reading of a config would do
    ("gpt-oss", {"rope_scaling": {**cases.YARN, "truncate": True}}),
    ("gpt-oss", {"sliding_window": 41}),
    ("gpt-oss", {"num_experts_per_tok": 2}),
    ("gpt-oss", {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}),
    ("gpt-oss-limit", {"swiglu_limit": 1.6}),
    ("gpt-oss-limit", {"swiglu_alpha": 1.35}),
    ("gpt-oss-plain-rope", {"swiglu_limit": 1e6}),
]


def run_case(tally, build, case, tmp):
    config, mlx_serves = cases.CASES[case]
    ids = cases.prompt(case)
    folder = tmp / case
    digest = cases.write(case, folder, "hf")
    known = json.loads(cases.DIGESTS.read_text())
    tally.say(digest == known.get(case), f"{case}: weights are those of the golden")
    ours = our_logits(build, folder, ids)
    far = distance(ours, np.load(cases.golden_path(case)))
    tally.say(far <= BAR, f"{case}: {far:.2g} of the range from transformers")
    if mlx_serves:
        far = distance(ours, mlx_logits(folder, ids))
        tally.say(far <= BAR, f"{case}: {far:.2g} of the range from mlx-lm")
    other = tmp / f"{case}-new"
    cases.write(case, other, "hf", cases.new_spelling(config))
    tally.say(np.array_equal(ours, our_logits(build, other, ids)),
              f"{case}: rope_parameters give the same bits")


def run_forms(tally, build, case, tmp):
    """The same model in every form, and what convert makes of it."""
    ids = cases.prompt(case)
    hf = tmp / case
    want = {arith: our_logits(build, hf, ids, arith) for arith in ("f32", "mma90")}
    others = {}
    for form in cases.FORMS:
        others[form] = tmp / f"{case}-{form}"
        cases.write(case, others[form], form)
    others["gguf"] = tmp / f"{case}.gguf"
    cases.write_gguf(case, others["gguf"])
    for name, source, options in (("kept", hf, []), ("kept from GGUF", others["gguf"], []),
                                  ("expanded to bf16", hf, ["--expand", "bf16"]),
                                  ("expanded to f32", others["gguf"], ["--expand", "f32"]),
                                  ("copied from floats", others["float"], [])):
        others[name] = tmp / f"{case}-{name.replace(' ', '-')}"
        assay(build, "convert", source, "-o", others[name], *options)
    for name, path in others.items():
        for arith, logits in want.items():
            tally.say(np.array_equal(logits, our_logits(build, path, ids, arith)),
                      f"{case}: experts {name} give the same bits in {arith}")
    listed = json.loads(assay(build, "inspect", others["kept from GGUF"], "--json"))
    kept = {t["format"] for t in listed["tensors"]
            if t["role"] == "expert" and t["name"].endswith(".weight")}
    tally.say(kept == {"mxfp4"}, f"{case}: experts of a GGUF are kept as {kept}")


def run_by_mlx(tally, build, case, tmp):
    """mlx-lm loads what we write: experts kept, and every matrix in mxfp4 but the router."""
    ids, kept, made = cases.prompt(case), tmp / f"{case}-kept", tmp / f"{case}-mxfp4"
    assay(build, "convert", tmp / case, "-o", kept)
    recipe = tmp / "recipe.yaml"
    recipe.write_text("why: a proof\nrules:\n  - format: mxfp4\n  - role: router\n    keep: true\n")
    assay(build, "quantize", tmp / case, "-o", made, "--recipe", recipe, "--verify")
    for what, folder in (("kept", kept), ("made", made)):
        far = distance(our_logits(build, folder, ids), mlx_logits(folder, ids))
        tally.say(far <= BAR, f"{case}: mxfp4 as {what} is {far:.2g} of the range from mlx-lm")


def run_packed(tally, build, case, tmp):
    """Everything else packed in 8 bits, experts made mxfp8 and nvfp4 again."""
    ids = cases.prompt(case)
    for form in ("mxfp8", "nvfp4"):
        packed, recipe = tmp / f"{case}-{form}", tmp / "recipe.yaml"
        recipe.write_text(f"why: a proof\nrules:\n  - bits: 8\n    group: 32\n"
                          f"  - role: expert\n    format: {form}\n")
        assay(build, "quantize", tmp / case, "-o", packed, "--recipe", recipe, "--verify")
        for arith, expand in (("f32", "f32"), ("mma90", "bf16")):
            flat = tmp / f"{case}-{form}-{expand}"
            assay(build, "convert", packed, "-o", flat, "--expand", expand)
            tally.say(np.array_equal(our_logits(build, packed, ids, arith),
                                     our_logits(build, flat, ids, arith)),
                      f"{case}: {form} equals its expansion in {arith}")
        if cases.CASES[case][1]:
            far = distance(our_logits(build, packed, ids),
                           mlx_logits(tmp / f"{case}-{form}-f32", ids))
            tally.say(far <= BAR, f"{case}: {form} is {far:.2g} from mlx-lm's expansion")


def run_fault(tally, build, case, change, tmp):
    folder = tmp / f"{case}-fault-{next(iter(change))}"
    cases.write(case, folder, "hf", {**cases.CASES[case][0], **change})
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
        run_forms(tally, build, "gpt-oss", tmp)
        run_by_mlx(tally, build, "gpt-oss-plain-rope", tmp)
        for case in ("gpt-oss", "gpt-oss-plain-rope"):
            run_packed(tally, build, case, tmp)
        for case, change in FAULTS:
            run_fault(tally, build, case, change, tmp)
    print(f"{tally.passed} passed, {tally.failed} failed, 0 skipped")
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
