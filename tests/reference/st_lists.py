"""safetensors files against the `safetensors` library: what is accepted, what is refused, and the
tensors of accepted files.

Usage: st_lists.py BUILD [DATA [MODEL [--full]]]
"""
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

import mlx.core as mx
import numpy as np
import safetensors
import safetensors.numpy


def header_file(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else header.encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(dtype="F32", shape=(2,), begin=0, end=8):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def j(obj):
    return json.dumps(obj)


D8, D16 = bytes(range(8)), bytes(range(16))

# name, bytes, and where we depart on purpose: None, "stricter" or "looser".
CASES = [
    ("plain", header_file(j({"a": tensor()}), D8), None),
    ("empty object", header_file("{}      "), None),
    ("two bytes of header", header_file("{}"), None),
    ("leading whitespace", header_file(" \t\r\n" + j({"a": tensor()}), D8), None),
    ("trailing whitespace", header_file(j({"a": tensor()}) + " \t\r\n", D8), None),
    ("trailing text", header_file(j({"a": tensor()}) + " x", D8), None),
    ("trailing NUL", header_file(j({"a": tensor()}) + "\0", D8), None),
    ("metadata null", header_file('{"__metadata__":null}'), None),
    ("metadata strings", header_file('{"__metadata__":{"format":"pt"}}'), None),
    ("metadata number", header_file('{"__metadata__":{"format":1}}'), None),
    ("metadata string", header_file('{"__metadata__":"x"}'), None),
    ("metadata list", header_file('{"__metadata__":[]}'), None),
    ("empty file", b"", None),
    ("seven bytes", b"\x02\0\0\0\0\0\0", None),
    ("length all ones", b"\xff" * 8 + b"{}", None),
    ("length past the end", header_file("{}", length=3), None),
    ("length too large", header_file("{}", length=100000001), None),
    ("length zero", header_file("", length=0), None),
    ("not UTF-8", header_file(b'{"\xff":' + j(tensor()).encode() + b"}", D8), None),
    ("not JSON", header_file("{a}"), None),
    ("a list", header_file("[]"), None),
    ("a BOM", header_file(b"\xef\xbb\xbf{}"), None),
    ("extra bytes", header_file(j({"a": tensor()}), D8 + b"\0"), None),
    ("missing bytes", header_file(j({"a": tensor()}), D8[:7]), None),
    ("overlap", header_file(j({"a": tensor(), "b": tensor()}), D8), None),
    ("overlap in part", header_file(j({"a": tensor(), "b": tensor(begin=4, end=12)}), D16[:12]), None),
    ("hole", header_file(j({"a": tensor(), "b": tensor(begin=12, end=20)}), bytes(20)), None),
    ("hole at the start", header_file(j({"a": tensor(begin=4, end=12)}), bytes(12)), None),
    ("order of JSON is not order of data",
     header_file(j({"b": tensor(begin=8, end=16), "a": tensor()}), D16), None),
    ("end before begin", header_file(j({"a": tensor(begin=8, end=0)}), D8), None),
    ("size is not shape x type", header_file(j({"a": tensor(shape=(3,))}), D8), None),
    ("scalar", header_file(j({"a": tensor(shape=(), end=4)}), D8[:4]), None),
    ("empty tensor", header_file(j({"a": tensor(shape=(0, 5), end=0)})), None),
    ("empty tensor at the running end",
     header_file(j({"a": tensor(), "b": tensor(shape=(0,), begin=8, end=8)}), D8), None),
    ("empty tensor inside another",
     header_file(j({"a": tensor(), "b": tensor(shape=(0,), begin=4, end=4)}), D8), None),
    ("product overflows", header_file(j({"a": tensor(shape=(2, 18446744073709551614))}), D8), None),
    ("bytes overflow", header_file(j({"a": tensor(shape=(2, 9223372036854775807))}), D8), None),
    ("overflow before a zero",
     header_file(j({"a": tensor(shape=(18446744073709551614, 2, 0), end=0)})), None),
    ("zero before an overflow",
     header_file(j({"a": tensor(shape=(0, 18446744073709551614, 2), end=0)})), "stricter"),
    ("four-bit pair", header_file(j({"a": tensor("F4", (2,), 0, 1)}), b"\0"), None),
    ("four-bit odd", header_file(j({"a": tensor("F4", (3,), 0, 2)}), b"\0\0"), None),
    ("six-bit four", header_file(j({"a": tensor("F6_E2M3", (4,), 0, 3)}), b"\0\0\0"), None),
    ("unknown type", header_file(j({"a": tensor("U4", (2,), 0, 1)}), b"\0"), "looser"),
    ("lower case type", header_file(j({"a": tensor("f32")}), D8), "looser"),
    ("tensor twice, equal", header_file('{"a":%s,"a":%s}' % (j(tensor()), j(tensor())), D8),
     "stricter"),
    ("dtype twice", header_file('{"a":{"dtype":"F32","dtype":"F32","shape":[2],'
                                '"data_offsets":[0,8]}}', D8), None),
    ("extra field", header_file('{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":[{}]}}',
                                D8), None),
    ("field missing", header_file('{"a":{"dtype":"F32","shape":[2]}}', D8), None),
    ("tensor as a list", header_file('{"a":["F32",[2],[0,8]]}', D8), "stricter"),
    ("signed offset", header_file('{"a":{"dtype":"F32","shape":[2],"data_offsets":[-0,8]}}', D8), None),
    ("negative dim", header_file(j({"a": tensor(shape=(-2,))}), D8), None),
    ("real dim", header_file('{"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}}', D8), None),
    ("exponent dim", header_file('{"a":{"dtype":"F32","shape":[2e0],"data_offsets":[0,8]}}', D8), None),
    ("leading zero", header_file('{"a":{"dtype":"F32","shape":[02],"data_offsets":[0,8]}}', D8), None),
    ("plus sign", header_file('{"a":{"dtype":"F32","shape":[+2],"data_offsets":[0,8]}}', D8), None),
    ("three offsets", header_file('{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,8]}}', D8), None),
    ("string offsets", header_file('{"a":{"dtype":"F32","shape":[2],"data_offsets":"08"}}', D8), None),
    ("lone surrogate", header_file('{"\\ud800":%s}' % j(tensor()), D8), None),
    ("control character", header_file('{"a\n":%s}' % j(tensor()), D8), None),
    ("number beyond doubles", header_file('{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],'
                                          '"x":1e999}}', D8), None),
    ("NaN", header_file('{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":NaN}}', D8), None),
    ("comment", header_file('{/**/"a":%s}' % j(tensor()), D8), None),
    ("trailing comma", header_file('{"a":%s,}' % j(tensor()), D8), None),
    ("nested 120", header_file('{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":%s%s}}'
                               % ("[" * 120, "]" * 120), D8), None),
    ("nested 140", header_file('{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":%s%s}}'
                               % ("[" * 140, "]" * 140), D8), None),
    ("nested 100000", header_file('{"a":' + "[" * 100000), None),
]


def ours(build, path):
    done = subprocess.run([os.path.join(build, "tests", "tool_ckpt"), "tensors", path],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode not in (0, 3):
        raise SystemExit(f"tool_ckpt ended with {done.returncode} on {path}")
    lines = [line.rsplit(" ", 3) for line in done.stdout.decode().splitlines()]
    return done.returncode == 0, lines, done.stderr.decode().strip()


def theirs(data):
    try:
        return True, safetensors.deserialize(data)
    except safetensors.SafetensorError as error:
        return False, str(error)


def run_cases(build, folder):
    good = 0
    for name, data, depart in CASES:
        path = os.path.join(folder, "case.safetensors")
        with open(path, "wb") as f:
            f.write(data)
        accept, _, text = ours(build, path)
        reference, why = theirs(data)
        want = {"stricter": False, "looser": True}.get(depart, reference)
        ok = accept == want and (accept or "case.safetensors: " in text)
        if depart and accept == reference:
            ok = False  # the departure is gone: say so
        good += ok
        if not ok:
            print(f"FAIL {name}: we {'accept' if accept else 'refuse'} ({text}), "
                  f"safetensors {'accepts' if reference else 'refuses'} ({why if not reference else ''})")
    print(f"{good} of {len(CASES)} made files judged as expected")
    return good == len(CASES)


def run_files(build, folder):
    """Files of the reference writer and of MLX's, which pads nothing."""
    rng = np.random.default_rng(1)
    path = os.path.join(folder, "ok.safetensors")
    for turn in range(40):
        dims = [tuple(int(d) for d in rng.integers(0, 5, rng.integers(0, 4))) for _ in range(turn % 9)]
        arrays = {f"t{'x' * i}.{i}": rng.standard_normal(d).astype(rng.choice(["f4", "f2", "i8", "u1"]))
                  for i, d in enumerate(dims)}
        if turn % 2:
            safetensors.numpy.save_file(arrays, path)
        else:
            mx.save_safetensors(path, {k: mx.array(v) for k, v in arrays.items()},
                                metadata={"format": "mlx"})
        with open(path, "rb") as f:
            listed = theirs(f.read())
        if not listed[0]:
            continue
        want = sorted((n, t["dtype"], ",".join(map(str, t["shape"])), str(len(t["data"])))
                      for n, t in listed[1])
        accept, lines, text = ours(build, path)
        if not accept or sorted(tuple(x) for x in lines) != want:
            print(f"FAIL file {turn}: {text} {lines} {want}")
            return False
    return True


def run_truncated(build, folder):
    """Cut anywhere, a good file is refused."""
    arrays = {"a": np.zeros((3, 5), np.float32), "b": np.zeros(7, np.int8)}
    data = safetensors.numpy.save(arrays)
    path = os.path.join(folder, "cut.safetensors")
    r = random.Random(1)
    for cut in sorted(r.sample(range(len(data)), 60)):
        with open(path, "wb") as f:
            f.write(data[:cut])
        accept, _, text = ours(build, path)
        if accept or not text:
            print(f"FAIL cut at {cut}: accepted")
            return False
    return True


def main():
    build = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        results = [run_cases(build, folder), run_files(build, folder), run_truncated(build, folder)]
    failed = results.count(False)
    print(f"{results.count(True)} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
