"""Tiny checkpoints of every family for tests/gpu/run: the folders that tests/reference proves, as they
are and packed, and those of tests/families/self_models.py.

usage: families.py BUILD OUT

BUILD has assay and tool_tiny. OUT gets the folder models, a folder a model with its prompt in the
file `tokens`: `run families` holds the logits of every position, in pieces of 64 tokens and of one,
against those of the CPU's mma90, byte by byte. And the folder self, a folder a model with a prompt
file: `run invariances` holds each against itself. 80 MB of random numbers, so they are made where
they are needed, and held against the digests of the goldens.
"""
import json
import os
import pathlib
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "families")]
import cases  # noqa: E402
import gpt_oss_cases  # noqa: E402
import self_models  # noqa: E402
from self_models import AFFINE, BLOCKS, pack  # noqa: E402

FORMATS = ("mxfp4", "mxfp8", "nvfp4")


def write_case(build, to, case):
    if case in gpt_oss_cases.CASES:
        digest, known = gpt_oss_cases.write(case, to / case, "hf"), gpt_oss_cases.DIGESTS
        prompt, recipes = gpt_oss_cases.prompt(case), {f: BLOCKS.format(f) for f in FORMATS}
    else:
        digest, known = cases.write_case(case, to / case), cases.HERE / "golden" / "weights.json"
        prompt = cases.prompt(case)
        recipes = {f"q{b}": AFFINE.format(b) for b in (4, 8)} if case in cases.PACKED else {}
    if json.loads(known.read_text()).get(case) != digest:
        raise SystemExit(f"{case}: its weights are not those of the golden")
    made = [to / case]
    for name, recipe in recipes.items():
        made.append(to / f"{case}-{name}")
        pack(build, to / case, made[-1], recipe)
    for folder in made:
        (folder / "tokens").write_text(" ".join(map(str, prompt)) + "\n")
    return len(made)


def main():
    build, out = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in ("models", "self"):
        shutil.rmtree(out / name, ignore_errors=True)
        (out / name).mkdir(parents=True)
    self_models.write_text(build, out / "text")
    with ProcessPoolExecutor() as pool:
        made = [pool.submit(write_case, build, out / "models", case)
                for case in [*cases.CASES, *gpt_oss_cases.CASES]]
        selves = [pool.submit(self_models.write, build, name, out / "self" / name, out / "text")
                  for name in self_models.MODELS]
        for done in selves:
            done.result()
        print(f"{sum(m.result() for m in made)} models, {len(selves)} against themselves")
    shutil.rmtree(out / "text")


if __name__ == "__main__":
    main()
