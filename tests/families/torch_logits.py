"""Goldens of the tiny models by transformers: tests/families/golden/CASE.npy, and weights.json.

Usage: torch_logits.py [CASE...]; all cases without arguments. Needs torch and transformers 5.24,
which are too large for ./check: make an environment with
    python3 -m venv /tmp/torch-env && /tmp/torch-env/bin/pip install torch transformers==5.24.0
The files hold float32 logits [96, vocabulary] of the case's prompt, eager attention, on the CPU.
"""
import json
import pathlib
import sys
import tempfile

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import cases  # noqa: E402


def logits_of(folder, ids):
    config = AutoConfig.from_pretrained(folder)
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=torch.float32, attn_implementation="eager",
        output_loading_info=True)
    said = {k: list(v) for k, v in info.items() if v}
    if said:
        raise SystemExit(f"{folder}: {said}")
    with torch.no_grad():
        # With hidden states every row goes through every layer; else Gemma 4's layers that share
        # keys and values look for the inputs of each layer, and fail where there are none.
        out = model.eval()(input_ids=torch.tensor([ids]), use_cache=False,
                           output_hidden_states=True).logits[0]
    return out.numpy().astype(np.float32)


def main():
    known = cases.digests()
    for case in sys.argv[1:] or cases.CASES:
        with tempfile.TemporaryDirectory() as tmp:
            folder = pathlib.Path(tmp, case)
            known[case] = cases.write_case(case, folder)
            out = logits_of(folder, cases.prompt(case))
        cases.golden_path(case).parent.mkdir(exist_ok=True)
        np.save(cases.golden_path(case), out)
        print(f"{case}: {out.shape}, {out.min():.3f} .. {out.max():.3f}", flush=True)
    known = {k: v for k, v in sorted(known.items()) if k in cases.CASES}
    (cases.HERE / "golden" / "weights.json").write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
