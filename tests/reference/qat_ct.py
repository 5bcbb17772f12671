"""Matrices packed by compressed-tensors: our values against the library's own.

Usage: qat_ct.py BUILD DATA MODEL [--full]; DATA and MODEL are not used.

tests/golden/ct holds a checkpoint in each of the library's two layouts, and SHA-256 of every
decompressed weight. Each is decoded as it lies, and converted; both must round to those bytes.
"""
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile

import numpy as np

build = sys.argv[1]
golden = os.path.join(os.path.dirname(__file__), "..", "golden", "ct")
passed = failed = 0


def check(ok, what):
    global passed, failed
    passed += bool(ok)
    failed += not ok
    print(("ok    " if ok else "FAIL  ") + what, flush=True)


def run(*args):
    return subprocess.run([os.path.join(build, args[0]), *args[1:]], capture_output=True)


def rounded(values, kind):
    """f32 values in the scale's type, as bytes: one rounding to nearest, ties to even."""
    if kind == "F16":
        return values.astype(np.float16).tobytes()
    u = values.view(np.uint32).astype(np.uint64)
    return ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype(np.uint16).tobytes()


def scale_types(folder):
    with open(os.path.join(folder, "model.safetensors"), "rb") as f:
        header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
    return {k[:-len(".weight_scale")]: v["dtype"] for k, v in header.items()
            if k.endswith(".weight_scale")}


def compare(folder, expected, types, what):
    good = 0
    for module, digest in expected.items():
        got = run("tests/tool_ckpt", "decode", folder, module + ".weight")
        values = np.frombuffer(got.stdout, np.float32)
        ok = hashlib.sha256(rounded(values, types[module])).hexdigest() == digest
        good += ok
        if not ok:
            print("  differs:", module, got.stderr.decode()[:200])
    check(good == len(expected), f"{what}: {good} of {len(expected)} modules equal the library's")


def refused(work, what, change, *words):
    folder = os.path.join(work, "changed")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(os.path.join(golden, "dense"), folder)
    path = os.path.join(folder, "config.json")
    with open(path) as f:
        config = json.load(f)
    change(config["quantization_config"])
    with open(path, "w") as f:
        json.dump(config, f)
    out = os.path.join(work, "out")
    got = run("assay", "convert", folder, "-o", out)
    text = got.stderr.decode()
    check(got.returncode == 3 and all(w in text for w in words) and not os.path.exists(out),
          f"{what}: refused, {text.strip()[-150:]}")


def group(name, **keys):
    return lambda q: q["config_groups"][name].update(keys)


def weights(name, **keys):
    return lambda q: q["config_groups"][name]["weights"].update(keys)


with tempfile.TemporaryDirectory() as work:
    for layout in ("dense", "word"):
        folder = os.path.join(golden, layout)
        with open(os.path.join(folder, "expected.json")) as f:
            expected = json.load(f)
        types = scale_types(folder)
        compare(folder, expected, types, layout)
        out = os.path.join(work, layout)
        made = run("assay", "convert", folder, "-o", out, "--verify")
        check(made.returncode == 0, f"{layout}: converts, {made.stderr.decode().strip()[-120:]}")
        compare(out, expected, types, f"{layout}, converted")
        with open(os.path.join(out, "assay.json")) as f:
            tensors = json.load(f)["tensors"]
        packed = [t for t in tensors if t["action"] == "repack"]
        check(len(packed) == len(expected) and all(t["exact"] for t in packed),
              f"{layout}: {len(packed)} matrices repacked, all exact")
        sevens = [t for t in packed if " 7 bits" in t["from"]]
        check(len(sevens) == 2 and all(t["bits"] == 8 for t in sevens), f"{layout}: 7 bits as 8")
    refused(work, "another format", lambda q: q.update(format="float-quantized"),
            "float-quantized")
    refused(work, "activations", group("group_0", input_activations={"num_bits": 8}),
            "group_0", "input_activations")
    refused(work, "an unknown key", lambda q: q.update(codebook=1), "codebook")
    refused(work, "an unknown key of weights", weights("group_1", fancy=True), "fancy")
    refused(work, "floats", weights("group_1", type="float"), "float")
    refused(work, "nine bits", weights("group_1", num_bits=9), "num_bits")
    refused(work, "a cache scheme", lambda q: q.update(kv_cache_scheme={"num_bits": 8}),
            "kv_cache_scheme")
    refused(work, "a transform", lambda q: q.update(transform_config={"x": 1}), "transform_config")
    refused(work, "another number of bits", weights("group_0", num_bits=5), "words in a row")
    refused(work, "symmetric with zero points", weights("group_1", symmetric=True), "zero_point")
    refused(work, "another group", weights("group_0", group_size=64), "weight_scale")
    refused(work, "no group matches", group("group_1", targets=["nothing"]), "no group")
    both = ["model.layers.0.self_attn.k_proj", "re:.*layers.0.self_attn.q_proj$"]
    refused(work, "two groups match", group("group_1", targets=both), "both match")
    refused(work, "a broken pattern", group("group_1", targets=["re:("]), "regular expression")
    refused(work, "no groups", lambda q: q.update(config_groups={}), "config_groups")
print(f"{passed} passed, {failed} failed, 0 skipped")
sys.exit(failed != 0)
