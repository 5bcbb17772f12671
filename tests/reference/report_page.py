"""The pages of compare, looked at in headless Chromium.

Usage: report_page.py BUILD DATA [MODEL [--full]]; only BUILD is used. At 400 and 1400 pixels, light and dark:
nothing wider than the window but what scrolls by itself, no text over other text, contrast of at
least 4.5, everything readable with scripts off, tables that sort with them on. The pages hold what
is hard to lay out: long names, hostile text, a pair that is NOT COMPARABLE, gates, six variants.
Screenshots stay in BUILD/screenshots.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from html import unescape

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
passed = failed = 0

PROBE = r"""
<script>
const out = {faults: [], dark: matchMedia('(prefers-color-scheme: dark)').matches};
for (const d of document.querySelectorAll('details')) d.open = true;
const page = document.documentElement, width = page.clientWidth;
out.width = width;
out.scroll = page.scrollWidth;
const inner = e => { for (; e; e = e.parentElement) if (e.classList.contains('scroll')) return e;
                     return null; };
// Every piece of text with its boxes; those of a scrolling table are cut to it.
const pieces = [];
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let n; (n = walk.nextNode());) {
  const p = n.parentElement;
  if (!n.data.trim() || p.closest('script,title,desc,style')) continue;
  const range = document.createRange();
  range.selectNodeContents(n);
  for (const r of range.getClientRects())
    if (r.width > 0.5 && r.height > 0.5) pieces.push({r, p, s: n.data.trim().slice(0, 40)});
}
out.pieces = pieces.length;
const fault = s => { if (out.faults.length < 20) out.faults.push(s); };
for (const a of pieces)
  if (!inner(a.p) && (a.r.left < -1 || a.r.right > width + 1))
    fault(`outside: '${a.s}' ${a.r.left.toFixed()} to ${a.r.right.toFixed()} of ${width}`);
for (const svg of document.querySelectorAll('svg')) {
  const box = svg.getBoundingClientRect();
  for (const t of svg.querySelectorAll('text')) {
    const r = t.getBoundingClientRect();
    if (r.left < box.left - 1 || r.right > box.right + 1 || r.top < box.top - 1 ||
        r.bottom > box.bottom + 1)
      fault(`outside of its plot: '${t.textContent.slice(0, 40)}'`);
  }
}
// Boxes of lines touch by a pixel or two where the line height is tight.
const order = [...pieces].sort((a, b) => a.r.top - b.r.top);
for (let i = 0; i < order.length; i++)
  for (let k = i + 1; k < order.length && order[k].r.top < order[i].r.bottom - 3; k++) {
    const a = order[i], b = order[k], x = Math.min(a.r.right, b.r.right) -
      Math.max(a.r.left, b.r.left), y = Math.min(a.r.bottom, b.r.bottom) - b.r.top;
    if (x > 1.5 && y > 3 && inner(a.p) === inner(b.p))
      fault(`overlap: '${a.s}' and '${b.s}'`);
  }
const light = c => { const v = c.match(/[\d.]+/g).slice(0, 3).map(x => x / 255)
  .map(x => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
  return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2]; };
const ground = e => { for (; e; e = e.parentElement) {
  const c = getComputedStyle(e).backgroundColor;
  if (!/rgba\(.*, 0\)|transparent/.test(c)) return c; } return 'rgb(255,255,255)'; };
out.contrast = 21;
for (const a of pieces) {
  const style = getComputedStyle(a.p), svg = a.p.closest('svg');
  const x = light(svg ? style.fill : style.color), y = light(ground(a.p));
  const c = (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
  if (c < out.contrast) { out.contrast = c; out.faint = a.s; }
}
out.text = document.body.innerText.length;
// Sorted by the second column: its numbers ascend, then descend.
const table = document.querySelector('table');
const numbers = () => [...table.tBodies[0].rows].map(r => parseFloat(r.cells[2].textContent))
  .filter(x => !isNaN(x));
table.tHead.rows[0].cells[2].click();
const up = numbers();
table.tHead.rows[0].cells[2].click();
const down = numbers();
out.sorts = up.length > 1 && up.every((x, i) => !i || up[i - 1] <= x) &&
  down.every((x, i) => !i || down[i - 1] >= x);
const pre = document.createElement('pre');
pre.id = 'probe';
pre.textContent = JSON.stringify(out);
document.body.append(pre);
</script>
</body>"""


def check(ok, what):
    global passed, failed
    passed += bool(ok)
    failed += not ok
    print(("ok    " if ok else "FAIL  ") + what, flush=True)


def browse(browser, path, width, height, dark, *more):
    return subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
         "--virtual-time-budget=4000", f"--window-size={width},{height}",
         f"--blink-settings=preferredColorScheme={0 if dark else 1}", *more, "file://" + path],
        capture_output=True, text=True, timeout=120, check=True).stdout


def look(browser, page, name, shots, folder):
    with open(page, encoding="utf-8") as f:
        html = f.read()
    urls = re.findall(r"""(?:src|href|action|data)\s*=\s*["']([^"']*)""", html)
    check(not urls and "@import" not in html and "url(" not in html, f"{name}: nothing is fetched")
    check(len(html) < 3_000_000, f"{name}: {len(html)} bytes, below 3 MB")
    probe = os.path.join(folder, "probe.html")
    with open(probe, "w", encoding="utf-8") as f:
        f.write(html.replace("</body>", PROBE))
    for width in (400, 1400):
        for dark in (False, True):
            what = f"{name} at {width} pixels, {'dark' if dark else 'light'}"
            dom = browse(browser, probe, width, 1000, dark, "--dump-dom")
            found = re.search(r'<pre id="probe">(.*?)</pre>', dom, re.S)
            check(found, f"{what}: the page was looked at")
            if not found:
                continue
            text = found.group(1).replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
            out = json.loads(text)
            check(out["dark"] == dark and out["width"] == width, f"{what}: as asked")
            check(out["scroll"] <= width, f"{what}: the page is {out['scroll']} wide")
            check(not out["faults"], f"{what}: {out['pieces']} texts, {out['faults'] or 'none outside or over another'}")
            check(out["contrast"] >= 4.5, f"{what}: least contrast {out['contrast']:.2f}, '{out['faint']}'")
            check(out["sorts"], f"{what}: the table of variants sorts")
            shot = os.path.join(shots, f"{name}-{width}-{'dark' if dark else 'light'}.png")
            browse(browser, page, width, 3000, dark, f"--screenshot={shot}")
            check(os.path.getsize(shot) > 10_000, f"{what}: a screenshot")
    dom = browse(browser, page, 1400, 1000, False, "--dump-dom")
    bodies = [unescape(re.sub(r"<!DOCTYPE[^>]*>|<script.*?</script>|<[^>]*>|\s", "", p, flags=re.S))
              for p in (html, dom)]
    check(bodies[0] == bodies[1] and len(bodies[0]) > 1000, f"{name}: the script adds no text and hides none")


def run(folder, code, *args):
    done = subprocess.run(args, cwd=folder, capture_output=True, text=True)
    check(done.returncode == code, f"{' '.join(args[1:3])}: ended with {done.returncode} {done.stderr[-200:] if done.returncode != code else ''}")
    return done.stdout


def make_reports(build, folder):
    """A page with everything on it, from tiny models."""
    assay, tiny = os.path.join(build, "assay"), os.path.join(build, "tests", "tool_tiny")
    long = "a-variant-with-a-name-that-is-much-longer-than-a-column-q2"
    for name, bits in (("m8", 8), ("q2", 2), ("q3", 3), ("q4", 4), ("q5", 5), (long, 6)):
        run(folder, 0, tiny, name, "text=1", "form=2", f"bits={bits}", "group=64")
    shutil.copytree(os.path.join(folder, "m8"), os.path.join(folder, "rope"))
    config = os.path.join(folder, "rope", "config.json")
    with open(config, encoding="utf-8") as f:
        text = f.read()
    with open(config, "w", encoding="utf-8") as f:
        f.write(text.replace('"rope_theta": 10000', '"rope_theta": 20000'))
    hostile = "<script>alert(1)</script> & \"x\" \u202e " + "w" * 120
    with open(os.path.join(folder, "p.jsonl"), "w", encoding="utf-8") as f:
        for i in range(12):
            text = hostile if i == 3 else "the cat sat over the old bridge " * (1 + i % 3)
            f.write(json.dumps({"custom_id": "x" * 100 if i == 5 else f"p{i}", "prompt": text,
                                "max_tokens": 60, "ignore_eos": True}) + "\n")
    with open(os.path.join(folder, "gates.yaml"), "w", encoding="utf-8") as f:
        f.write("why: shown\ngates:\n  max_kl: 0.01\n  min_agreement: 0.9\n"
                "variants:\n  - name: q2\n    gates: {max_kl: 100}\n")
    run(folder, 1, assay, "compare", "m8", "q5", "q4", "q3", "q2", long, "--prompts", "p.jsonl",
        "-o", "all", "--gates", "gates.yaml", "--forced-prompts", "--with-speed")
    run(folder, 3, assay, "compare", "m8", "rope", "q3", "--prompts", "p.jsonl", "-o", "never",
        "--no-judge")
    run(folder, 0, assay, "compare", "m8", "m8", "--prompts", "p.jsonl", "-o", "same")
    run(folder, 1, assay, "compare", "m8", "q2", "--prompts", "p.jsonl", "-o", "where", "--where", "2",
        "--no-judge")
    with open(os.path.join(folder, "where", "report.html"), encoding="utf-8") as f:
        check("Where it enters" in f.read(), "the page where flips enter says so")


def main():
    build = os.path.abspath(sys.argv[1])
    browser = next((b for b in BROWSERS if shutil.which(b)), None)
    if browser is None:
        print("SKIP: no Chromium: install chromium-headless-shell")
        return 77
    shots = os.path.join(build, "screenshots")
    os.makedirs(shots, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        make_reports(build, folder)
        for name in ("all", "never", "same", "where"):
            look(browser, os.path.join(folder, name, "report.html"), name, shots, folder)
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


sys.exit(main())
