"""Divergences, ranks, margins, quantiles and bootstrap intervals against numpy.

Usage: stats_numpy.py BUILD DATA [MODEL [--full]]; DATA and MODEL are not used.

Rows: 200 pairs of 1000 logits (--full: 20000 pairs), flat, peaked and far apart. Intervals: another
generator's resampling of the same clusters must give the same ends within its own noise.
"""
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

passed = failed = 0


def check(ok, what):
    global passed, failed
    passed += bool(ok)
    failed += not ok
    print(("ok    " if ok else "FAIL  ") + what, flush=True)


def tool(build, *args):
    out = subprocess.run([os.path.join(build, "tests", "tool_stats"), *args], check=True,
                         capture_output=True, text=True).stdout
    return [json.loads(line) for line in out.splitlines()]


def log_softmax(x):
    x = x.astype(np.float64)
    x = x - x.max()
    return x - np.log(np.exp(x).sum())


def rows(build, folder, pairs, n):
    rng = np.random.default_rng(7)
    path = os.path.join(folder, "rows")
    scale = rng.choice([0.1, 2.0, 30.0], size=(pairs, 2, 1))
    x = (rng.standard_normal((pairs, 2, n)) * scale).astype("<f4")
    near = rng.random(pairs) < 0.5
    x[near, 1] = x[near, 0] + (rng.standard_normal((int(near.sum()), n)) * 0.1).astype("<f4")
    x.tofile(path)
    worst, whole = 0.0, True
    for got, (a, b) in zip(tool(build, "rows", path, str(n)), x):
        p, q = log_softmax(a), log_softmax(b)
        ep, eq = np.exp(p), np.exp(q)
        m = (ep + eq) / 2
        lm = np.log(np.where(m > 0, m, 1))
        want = {"kl": (ep * (p - q)).sum(), "kl_rev": (eq * (q - p)).sum(),
                "js": ((ep * (p - lm))[ep > 0].sum() + (eq * (q - lm))[eq > 0].sum()) / 2,
                "ref_nll": -p[0], "var_nll": -q[0]}
        for key, w in want.items():
            worst = max(worst, abs(got[key] - w) / max(1.0, abs(w)))
        order = np.argsort(-b, kind="stable")
        whole &= got["rank"] == int(np.where(order == a.argmax())[0][0])
        tops = [set(np.argsort(-v, kind="stable")[:5]) for v in (a, b)]
        whole &= got["top"] == len(tops[0] & tops[1])
        for key, v in (("ref_margin", a), ("var_margin", b)):
            s = np.sort(v)
            whole &= np.float32(got[key]) == s[-1] - s[-2]
    check(worst < 1e-11, f"KL both ways, Jensen-Shannon, NLL of {pairs} pairs: {worst:.1e} at most")
    check(whole, "ranks, shared top 5 and margins are equal")


def clusters(build, folder):
    rng = np.random.default_rng(8)
    path = os.path.join(folder, "clusters")
    lengths = np.maximum(1, np.exp(rng.standard_normal(60) + 2).astype(int))
    ids = np.repeat(np.arange(60), lengths)
    x = np.exp(rng.standard_normal(60)[ids] * 0.5 + rng.standard_normal(len(ids)))
    np.stack([x, ids.astype(float)], axis=1).astype("<f8").tofile(path)
    got = tool(build, "clusters", path)[0]
    where = [np.where(ids == i)[0] for i in range(60)]
    names = ["mean", "q0", "q1", "q2", "q3"]
    levels = [0.5, 0.9, 0.99, 0.999]

    def figures(v):
        return [v.mean()] + [np.quantile(v, q) for q in levels]

    for name, w in zip(names, figures(x)):
        check(abs(got[name][0] - w) < 1e-9 * abs(w), f"{name}: {w:.6g}")
    sizes = np.array([len(w) for w in where])
    free = sizes.sum() ** 2 / (sizes ** 2).sum() - 1
    z2 = 3.8415
    wider = np.sqrt((free + 1) / free) * (1 + (z2 + 1) / (4 * free)
                                          + (5 * z2 ** 2 + 16 * z2 + 3) / (96 * free ** 2))
    picks = [rng.integers(0, 60, 60) for _ in range(4000)]
    drawn = np.array([figures(x[np.concatenate([where[i] for i in p])]) for p in picks])
    for i, name in enumerate(names[:4]):
        lo, hi = np.quantile(drawn[:, i], [0.025, 0.975])
        if name == "mean":
            lo, hi = x.mean() - wider * (x.mean() - lo), x.mean() + wider * (hi - x.mean())
        near = 0.12 * (hi - lo)
        check(abs(got[name][1] - lo) < near and abs(got[name][2] - hi) < near,
              f"{name}: {got[name][1]:.4g} .. {got[name][2]:.4g}, numpy {lo:.4g} .. {hi:.4g}")


def main():
    full = "--full" in sys.argv
    with tempfile.TemporaryDirectory() as folder:
        rows(sys.argv[1], folder, 20000 if full else 200, 1000)
        clusters(sys.argv[1], folder)
    print(f"{passed} passed, {failed} failed, 0 skipped")
    sys.exit(failed != 0)


main()
