#!/usr/bin/env python3
"""batch_kill.py BUILD DATA MODEL [--full]: batches that are killed, out of room, or meet each other.

A run is ended by SIGKILL (now and then by SIGTERM) at a random moment, sometimes again while it is
resumed, and then resumed to its end: OUT and OUT.run must be those of an uninterrupted run, byte
for byte, whatever else shared the batch. Small: 40 such runs of a tiny model; --full: 1,000, and 20
of the real model. The same on a file system that is full at a random point, and with two runs that
start on one output at the same time. The last line counts: "N passed, N failed, N skipped".
"""
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

build, model = os.path.abspath(sys.argv[1]), sys.argv[3]
full = "--full" in sys.argv
assay = os.path.join(build, "assay")
# Two waiting threads of OpenMP are two busy ones; the bits are the same with one.
env = dict(os.environ, OMP_NUM_THREADS="1")
passed = failed = skipped = 0


def check(what, good, more=""):
    global passed, failed
    passed += bool(good)
    failed += not good
    if not good:
        print(f"FAIL {what}: {more}", flush=True)


def command(out, m, prompts, *more):
    return [assay, "infer", "--batch", prompts, "-m", m, "-o", out, "--threads", "1", *more]


def run(*args):
    done = subprocess.run(command(*args), env=env, stderr=subprocess.PIPE, text=True)
    return done.returncode, done.stderr


def start(*args):
    return subprocess.Popen(command(*args), env=env, stderr=subprocess.DEVNULL)


def read(path):
    with open(path, "rb") as f:
        return f.read()


def size(path):
    return os.path.getsize(path) if os.path.exists(path) else -1


def files(folder):
    return sorted(os.listdir(folder))


def fresh(folder):
    shutil.rmtree(folder, ignore_errors=True)
    os.mkdir(folder)
    return os.path.join(folder, "o")


def write_prompts(path, n, long):
    with open(path, "w") as f:
        for i in range(n):
            f.write('{"custom_id":"%d","prompt":"number %d of a list","max_tokens":%d,'
                    '"ignore_eos":true,"temperature":%s}\n' % (i, i, 1 + i * 37 % long,
                                                               "0.9" if i % 5 == 0 else "0"))
        f.write('{"custom_id":"bad","prompt":1}\n')
        f.write('{"turns":["one","two"],"max_tokens":4}\n')


def kills(what, m, prompts, rounds, batches, rng):
    """SIGKILL at random points of a run, its resumptions, and the end."""
    lasts, opens = 1e9, 0
    for _ in range(3):
        whole = fresh("whole")
        began = time.monotonic()
        p = start(whole, m, prompts)
        while p.poll() is None and not os.path.exists(whole + ".journal"):
            time.sleep(0.001)
        opened, code = time.monotonic() - began, p.wait()
        if time.monotonic() - began < lasts:
            lasts, opens = time.monotonic() - began, opened
        check(f"{what}: a clean run", code == 4, f"ended with {code}")
    text, record = read(whole), read(whole + ".run")
    hits = 0
    for i in range(rounds):
        out = fresh("cut")
        for attempt in range(rng.randint(1, 3)):
            before = size(out + ".journal")
            p = start(out, m, prompts, "--resume", "--max-batch", str(rng.choice(batches)),
                      "--grace", "0")
            # Mostly while requests run, now and then while the model is still being opened.
            anywhere = rng.random() < 0.1
            while not anywhere and p.poll() is None and size(out + ".journal") == before:
                time.sleep(0.002)
            time.sleep(rng.random() * (lasts - opens) * (1.1 if attempt == 0 else 0.6))
            p.send_signal(signal.SIGTERM if rng.random() < 0.1 else signal.SIGKILL)
            p.wait()
            hits += os.path.exists(out + ".journal")
        # What is there after a kill is a part of the whole: lines that are whole, and perhaps a torn one.
        there = read(out) if os.path.exists(out) else b""
        check(f"{what}, round {i}: what is out", text.startswith(there))
        code, said = run(out, m, prompts, "--resume", "--max-batch", str(rng.choice(batches)))
        check(f"{what}, round {i}: resumed", code == 4, f"ended with {code}: {said}")
        same = os.path.exists(out) and read(out) == text and read(out + ".run") == record
        check(f"{what}, round {i}: the bytes", same, "OUT or OUT.run differ")
        check(f"{what}, round {i}: nothing is left",
              files("cut") == ["o", "o.run", "o.status.json"], str(files("cut")))
    check(f"{what}: most kills met a run under way", hits >= rounds // 3, f"{hits} of {rounds}")
    print(f"{what}: {rounds} runs, {hits} kills met a run under way, a clean run takes {lasts:.2f} s")


def full_disk(m, prompts, rounds, rng):
    """A small file system that is full at a random point; with room again the run goes on."""
    global skipped
    whole = fresh("whole")
    run(whole, m, prompts)
    text = read(whole)
    os.makedirs("room", exist_ok=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", "room"],
                      stderr=subprocess.DEVNULL).returncode:
        print("SKIP: no small file system can be mounted here: full disks")
        skipped += 1
        return
    try:
        full_ones = 0
        for i in range(rounds):
            for name in files("room"):
                os.unlink("room/" + name)
            with open("room/filler", "wb") as f:
                f.write(b"x" * ((1 << 20) - 4096 * rng.randint(1, 2 * len(text) // 4096 + 8)))
            code, said = run("room/o", m, prompts, "--max-batch", "4")
            full_ones += code == 5
            check(f"full disk, round {i}: its code", code in (4, 5), f"{code}: {said}")
            check(f"full disk, round {i}: its words", code == 4 or "No space left" in said, said)
            there = read("room/o") if os.path.exists("room/o") else b""
            check(f"full disk, round {i}: what is out", text.startswith(there) and
                  (not there or there.endswith(b"\n")), "a torn line")
            os.unlink("room/filler")
            code, said = run("room/o", m, prompts, "--resume")
            check(f"full disk, round {i}: goes on", code == 4, f"{code}: {said}")
            check(f"full disk, round {i}: the bytes", read("room/o") == text)
        check("full disks were full", full_ones >= rounds // 3, f"{full_ones} of {rounds}")
        print(f"full disk: {rounds} runs, {full_ones} of them out of room")
    finally:
        subprocess.run(["umount", "room"])


def two_at_once(m, prompts, rounds):
    """Two runs on one output: one makes it, the other is refused and touches nothing."""
    text = read(os.path.join("whole", "o"))
    refused = i = 0
    while i < rounds or (not refused and i < rounds + 40):
        i += 1
        out = fresh("cut")
        both = [start(out, m, prompts, "--resume") for _ in range(2)]
        codes = sorted(p.wait() for p in both)
        refused += codes == [4, 75]
        # The second may come when the first has ended, and finds a finished run.
        check(f"two runs, round {i}: their codes", codes in ([4, 75], [4, 4]), str(codes))
        check(f"two runs, round {i}: the bytes", read(out) == text)
    check("two runs met", refused > 0)


def main():
    rng = random.Random(20)
    write_prompts("p.jsonl", 40, 24)
    subprocess.run([os.path.join(build, "tests", "tool_tiny"), "tiny", "ctx=512", "text=1"],
                   check=True)
    kills("tiny", "tiny", "p.jsonl", 1000 if full else 40, [1, 2, 5, 16], rng)
    full_disk("tiny", "p.jsonl", 200 if full else 6, rng)
    two_at_once("tiny", "p.jsonl", 50 if full else 4)
    if full:
        real = model if os.path.isabs(model) else os.path.join(here, model)
        write_prompts("real.jsonl", 12, 12)
        kills("real", real, "real.jsonl", 20, [1, 3, 8], rng)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return failed != 0


here = os.getcwd()
with tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    status = main()
    os.chdir(here)
sys.exit(status)
