"""batch_overhead.py BUILD [LINES]: what a batch costs beside the model (not part of ./check).

A million trivial requests by default through reader, scheduler and writer with an engine that does
no arithmetic (tests/stub_engine.c), in one thread: lines a second by the clock and by the
processor's time, and the most memory that was held. Limits: 50,000 lines a second, 300 MB.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time

tools = os.path.join(os.path.abspath(sys.argv[1]), "tests")
lines = int(sys.argv[2]) if len(sys.argv) > 2 else 1000000
with tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    subprocess.run([os.path.join(tools, "tool_tiny"), "tiny", "ctx=256", "text=1"], check=True)
    with open("p.jsonl", "w") as f:
        for i in range(lines):
            f.write('{"custom_id":"request-%d","prompt":"hi %d"}\n' % (i, i))
    began = time.monotonic()
    subprocess.run([os.path.join(tools, "assay-stub"), "infer", "--batch", "p.jsonl", "-m", "tiny", "-o",
                    "o.jsonl", "-n", "1", "--threads", "1"], check=True,
                   env=dict(os.environ, OMP_NUM_THREADS="1"))
    wall = time.monotonic() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime
    print(f"{lines} lines: {lines / wall:.0f} lines/s in {wall:.1f} s, {lines / cpu:.0f} lines/s of "
          f"processor time, {used.ru_maxrss / 1000:.0f} MB, OUT {os.path.getsize('o.jsonl') / 1e6:.0f} MB, "
          f"OUT.run {os.path.getsize('o.jsonl.run') / 1e6:.0f} MB")
    os.chdir("/")
