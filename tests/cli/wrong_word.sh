#!/usr/bin/env bash
# One wrong word: SmolLM2 says that the currency of Japan is the Japanese Yen (JPY, and with 4 bits
# (¥, at a margin of 3.6 logits. compare names word, layer and part, and writes a recipe; quantized
# by it the model says the word again, and with a rule less it does not.
. "$(dirname "$0")/../cli_lib.sh"

if [ ! -e "${model%%:*}" ]; then
    echo "SKIP: no real model: wrong_word"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
export GOMP_SPINCOUNT=1000
prompts=$root/tests/golden/wrong-word.jsonl

# says_at_the_end MODEL TEXT: the last answer of the conversation ends with the text.
says_at_the_end()
{
    rm -f out.jsonl*
    assay infer --batch "$prompts" -m "$1" -o out.jsonl || return 1
    python3 -c 'import json, sys
text = json.loads(open("out.jsonl").readline())["response"]["body"]["choices"][-1]["message"]["content"]
assert text.endswith(sys.argv[1]), text' "$2"
}
# explained PYTHON: an expression over the first flip `f` and its remedy `r`.
explained()
{
    python3 -c 'import json, sys
w = json.load(open("report/report.json"))["pairs"][0]["where"]
f = w["explained"][0]
r = f["remedy"]
assert eval(sys.argv[1]), (f["words"], f["culprit"], r)' "$1"
}

check "expanded" assay convert "$model" -o ref --expand bf16
check "4 bits" assay quantize ref -o q4 --recipe "$root/recipes/affine4-g64.yaml"
check "the word" says_at_the_end ref "Japanese Yen (JPY"
check "another word" says_at_the_end q4 "Japanese Yen (¥"
ends "compared" 1 assay compare ref q4 --prompts "$prompts" -o report --no-judge --where 1
cp .stdout words
check "place and token" explained '(f["custom_id"], f["turn"], f["token"]) == ("yen", 1, 10)'
check "both words" grep -q 'q4: <C2> for "J" in yen, turn 1, token 10' words
check "a decided position" explained 'f["ref_margin"] > 3 and f["var_margin"] < 0'
check "all layers" explained 'len(f["layers"]) == 31 and 0 <= f["turns_in"] < 30'
check "the lens ends at the logits" \
    explained 'abs(f["layers"][30]["var_lens"] - f["var_margin"]) < 1e-3'
check "parts of all kinds" \
    explained '{p["kind"] for p in f["parts"]} == {"role", "layer", "cell", "tensor"}'
check "run and back" explained 'r["found"] and r["verified"] and r["lead"] >= f["safety"]'
check "the base is what q4 is" explained 'r["refit"] == 0 and r["base"].startswith("affine4-g64")'
check "few bytes" explained '0 < r["bytes"] < 400000'
check "the heat map" python3 -c 'import re, xml.etree.ElementTree as tree
plots = [tree.fromstring(s) for s in re.findall("<svg.*?</svg>", open("report/report.html").read(), re.S)]
heat = [p for p in plots if p[0].text == "Effect on the margin, layers by roles"]
cells = heat[0].findall("{http://www.w3.org/2000/svg}rect")
assert len(heat) == 1 and len(cells) == 3 + 2 * 30, len(cells)'

check "by the recipe" assay quantize ref -o fixed --recipe report/remedy-q4.yaml
check "the word is back" says_at_the_end fixed "Japanese Yen (JPY"
ends "and all tokens" 0 assay compare ref fixed --prompts "$prompts" -o after --no-judge
check "at the cost said" python3 -c 'import json
size = lambda d: json.load(open(d + "/assay.json"))["totals"]["bytes"]
w = json.load(open("report/report.json"))["pairs"][0]["where"]
assert size("fixed") - size("q4") == w["explained"][0]["remedy"]["bytes"]'
# Every rule that was added is needed: without the last one the word is lost again.
python3 -c 'import re
text = open("report/remedy-q4.yaml").read()
open("less.yaml", "w").write(text[:text.rindex("\n  - ") + 1])'
check "with a rule less" assay quantize ref -o less --recipe less.yaml
check "it is lost" says_at_the_end less "Japanese Yen (¥"
finish
