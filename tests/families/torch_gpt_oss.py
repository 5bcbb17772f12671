"""Goldens of the tiny gpt-oss models by transformers: golden/CASE.npy and gpt-oss-weights.json.

Usage: torch_gpt_oss.py [CASE...]. Needs the environment of torch_logits.py. Experts are given in
float32, whose values are those of their mxfp4.
"""
import json
import pathlib
import sys
import tempfile

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import gpt_oss_cases as cases  # noqa: E402
from torch_logits import logits_of  # noqa: E402


def main():
    known = json.loads(cases.DIGESTS.read_text()) if cases.DIGESTS.exists() else {}
    for case in sys.argv[1:] or cases.CASES:
        with tempfile.TemporaryDirectory() as tmp:
            known[case] = cases.write(case, pathlib.Path(tmp, "hf"), "hf")
            cases.write(case, pathlib.Path(tmp, "float"), "float")
            out = logits_of(pathlib.Path(tmp, "float"), cases.prompt(case))
        np.save(cases.golden_path(case), out)
        print(f"{case}: {out.shape}, {out.min():.3f} .. {out.max():.3f}", flush=True)
    known = {k: v for k, v in sorted(known.items()) if k in cases.CASES}
    cases.DIGESTS.write_text(json.dumps(known, indent=1) + "\n")


main()
