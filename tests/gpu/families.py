"""Tiny checkpoints of every family for tests/gpu/run: the folders that tests/reference proves, as they
are and packed.

usage: families.py BUILD OUT

OUT is made anew and gets models.tar.gz, a folder a model with its prompt in the file `tokens`. On
the device `run families` holds the logits of every position, in pieces of 64 tokens and of one,
against those of the CPU's mma90, byte by byte.
"""
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "families")]
import cases  # noqa: E402
import gpt_oss_cases  # noqa: E402

AFFINE = "why: a proof\nrules:\n  - bits: {}\n    group: 32\n"
BLOCKS = AFFINE.format(8) + "  - role: expert\n    format: {}\n"


def pack(build, source, to, recipe):
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as f:
        f.write(recipe)
        f.flush()
        subprocess.run([build / "assay", "quantize", source, "-o", to, "--recipe", f.name],
                       check=True, stderr=subprocess.DEVNULL)


def main():
    build, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        tmp = pathlib.Path(scratch)
        for module in (cases, gpt_oss_cases):
            for case in module.CASES:
                if module is gpt_oss_cases:
                    module.write(case, tmp / case, "hf")
                else:
                    module.write_case(case, tmp / case)
                made = [tmp / case]
                if module is gpt_oss_cases:
                    recipes = {form: BLOCKS.format(form) for form in ("mxfp4", "mxfp8", "nvfp4")}
                else:
                    recipes = {f"q{bits}": AFFINE.format(bits) for bits in (4, 8)}
                for name, recipe in recipes.items():
                    if module is gpt_oss_cases or case in cases.PACKED:
                        made.append(tmp / f"{case}-{name}")
                        pack(build, tmp / case, made[-1], recipe)
                for folder in made:
                    (folder / "tokens").write_text(" ".join(map(str, module.prompt(case))) + "\n")
        with tarfile.open(out / "models.tar.gz", "w:gz") as tar:
            for folder in sorted(tmp.iterdir()):
                tar.add(folder, folder.name)
        print(f"{len(list(tmp.iterdir()))} models, {(out / 'models.tar.gz').stat().st_size} bytes")


if __name__ == "__main__":
    main()
