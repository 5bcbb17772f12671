"""A packed tiny model of every family held against itself, switch by switch.

usage: families_self.py BUILD DATA MODEL [--full]

DATA and MODEL are not used. Each model of tests/families/self_models.py goes through `assay compare
--self`: every cell that the CPU has, but (without --full) other instruction sets, and in mma90 what
does not feed tokens otherwise. No cell may differ or say that it was not run. That each cell can
fail is shown by the faults of tests/test_self.c.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "families")]
import self_models  # noqa: E402
from families import Tally  # noqa: E402

DEVICE_ONLY = {"stream", "graph", "blocking", "oracle"}
FEEDING = "batch,order,neighbour,chunk,prefix,expand"
SHORT = {"f32": FEEDING + ",repeat,load,verify,poison,threads", "mma90": FEEDING}


def run(tally, build, model, arith, cells):
    """The cells by name; they must all be the same."""
    listed = ["--cells", cells] if cells else []
    done = subprocess.run([build / "assay", "compare", model, "--self", "--prompts", model / "p.jsonl",
                           "--device", "cpu", "--arith", arith, "--repeats", "1", "--json", *listed],
                          capture_output=True, text=True, check=False)
    said = json.loads(done.stdout) if done.stdout else {"cells": []}
    for cell in said["cells"]:
        if cell["cell"] in DEVICE_ONLY and cell["state"] == "not run":
            continue
        tally.say(cell["state"] == "same", f"{model.name} in {arith}: {cell}")
    tally.say(done.returncode == 0 and said["cells"], f"{model.name} in {arith}: {done.stderr[-300:]}")


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    full = "--full" in sys.argv
    os.environ |= {"OMP_NUM_THREADS": "1", "GOMP_SPINCOUNT": "1000"}  # beside other steps of ./check
    tally = Tally()
    with tempfile.TemporaryDirectory() as scratch:
        tmp = pathlib.Path(scratch)
        self_models.write_text(build, tmp / "text")
        for name in self_models.MODELS:
            self_models.write(build, name, tmp / name, tmp / "text")
            for arith, cells in SHORT.items():
                run(tally, build, tmp / name, arith, None if full else cells)
    print(f"{tally.passed} passed, {tally.failed} failed, 0 skipped")
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
