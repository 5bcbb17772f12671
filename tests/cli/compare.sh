#!/usr/bin/env bash
# compare's exit codes and what it says: the same, differing, gated, not comparable; one model
# against itself; the memory plan with its buffers. On tiny models.
. "$(dirname "$0")/../cli_lib.sh"

for bits in 8 3; do
    "$tools/tool_tiny" m$bits text=1 form=2 bits=$bits group=64
done
cp -r m8 copy
cp -r m8 rope
sed -i 's/"rope_theta": 10000/"rope_theta": 20000/' rope/config.json
cat >p.jsonl <<'P'
{"custom_id": "a", "prompt": "the cat", "max_tokens": 8}
{"custom_id": "b", "prompt": "over the old bridge", "max_tokens": 8}
P
ends "a copy is the same" 0 assay compare m8 copy --prompts p.jsonl -o same
ends "other weights differ" 1 assay compare m8 m3 --prompts p.jsonl -o differ
check "the verdict is in the report" grep -q '"verdict":"quantization"' differ/report.json
check "where it enters is looked at" grep -q '"where":{"flips":[1-9]' differ/report.json
ends "or not" 1 assay compare m8 m3 --prompts p.jsonl -o nowhere --no-judge --where 0
check "and not in the report" sh -c '! grep -q "\"where\":" nowhere/report.json'
ends "a gate holds" 0 assay compare m8 m3 --prompts p.jsonl -o gate --max-kl 100
ends "a gate fails" 1 assay compare m8 m3 --prompts p.jsonl -o gate --force --min-agreement 1
says "a gate fails" "m3: agreement is" "expected at least 1"
cat >gates.yaml <<'G'
why: 3 bits may be worse
gates:
  max_kl: 1e-6
  min_exact: 0
variants:
  - name: m3
    gates: {max_kl: 100}
G
ends "gates from YAML, a variant's over the others'" 0 assay compare m8 m3 copy --prompts p.jsonl \
    -o gated --gates gates.yaml --min-top 0
check "as JSON" python3 -c 'import json
p = json.load(open("gated/report.json"))["pairs"]
want = [("max-kl", 100), ("min-top", 0), ("min-exact", 0)]
assert [(g["gate"], g["bound"]) for g in p[0]["gates"]] == want and p[1]["gates"][0]["bound"] == 1e-6
assert all(g["passed"] for q in p for g in q["gates"])'
ends "an option stands above the file" 1 assay compare m8 m3 --prompts p.jsonl -o gated --force \
    --gates gates.yaml --max-kl 1e-6
says "an option stands above the file" "m3: KL is" "expected at most 1e-06"
check "failures as JUnit" python3 -c 'import xml.etree.ElementTree as x
s = x.parse("gated/junit.xml").getroot()
assert (s.get("tests"), s.get("failures"), s.get("errors"), s.get("skipped")) == ("4", "1", "0", "0")
assert s.find("testcase[@name=\"max-kl\"]/failure").get("message").startswith("m3: KL is")'
cp gated/report.html gated.how
check "the page shows them" grep -q '<td class="bad">failed</td>' gated/report.html
sed 's/name: m3/name: m4/' gates.yaml >other.yaml
ends "a gate for no variant" 3 assay compare m8 m3 --prompts p.jsonl -o gated --force --gates other.yaml
says "a gate for no variant" "no variant is named 'm4'"
sed 's/max_kl: 100/max_kl: -1/' gates.yaml >other.yaml
ends "a bound out of range" 3 assay compare m8 m3 --prompts p.jsonl -o gated --force --gates other.yaml
says "a bound out of range" "variant 'm3': the bound of KL is -1"
sed 's/max_kl: 100/max_lk: 100/' gates.yaml >other.yaml
ends "an unknown gate" 3 assay compare m8 m3 --prompts p.jsonl -o gated --force --gates other.yaml
says "an unknown gate" "line 7" "unknown key 'max_lk'; did you mean 'max_kl'?"
echo 'why: nothing' >other.yaml
ends "no gate at all" 3 assay compare m8 m3 --prompts p.jsonl -o gated --force --gates other.yaml
says "no gate at all" "no gate in it"

many=
for i in 1 2 3 4 5 6 7 8 9 10 11 12; do
    cp -r m3 "v$i"
    many="$many v$i"
done
# shellcheck disable=SC2086
ends "twelve variants, all failing" 1 assay compare m8 $many --prompts p.jsonl -o many --no-judge \
    --no-floor --max-kl 0 --min-exact 1
mv .stdout .many
check "at most 25 lines" test "$(wc -l <.many)" -le 25
check "the verdict first" grep -q "^verdict: differ, 0 of 24 gates hold" .many
check "a CSV line a variant, a line an answer" python3 -c 'import csv
v = list(csv.DictReader(open("many/report.csv", newline="")))
a = list(csv.DictReader(open("many/answers.csv", newline="")))
assert len(v) == 13 and v[0]["verdict"] == "reference" and len(a) == 24
assert all(float(r["kl_lo"]) <= float(r["kl"]) <= float(r["kl_hi"]) for r in v[1:])
assert {r["custom_id"] for r in a} == {"a", "b"} and None not in v[1] and None not in a[0]'
ends "a trace of it, from elsewhere" 1 assay compare many/trace-m8.trace.gz many/trace-v1.trace.gz -o t
ends "measured speed enters the page when asked" 1 assay compare m8 m3 --prompts p.jsonl -o fast \
    --with-speed --no-judge
check "it is there" grep -q 'tokens/s' fast/report.html
check "and only then" bash -c '! grep -q tokens/s differ/report.html'
check "how to reproduce it" grep -qF \
    'assay compare m8 m3 --arith f32 --prompts p.jsonl --gates gates.yaml --max-kl 1e-06 -o report' \
    gated.how

ends "another rope base" 3 assay compare m8 rope --prompts p.jsonl -o rope.report
says "another rope base" "NOT COMPARABLE" "rope base differs: 10000 and 20000"
ends "compared all the same" 1 assay compare m8 rope --prompts p.jsonl -o rope.report --force \
    --force-compare
check "another model" grep -q '"verdict":"other model"' rope.report/report.json
ends "without a variant" 2 assay compare m8 --prompts p.jsonl -o no

ends "a model against itself" 0 assay compare m8 --self --prompts p.jsonl --cells repeat,batch,verify
mv .stdout table; check "its table" grep -q "3 same, 0 differ, 0 not run" table
ends "the same as JSON" 0 assay compare m8 --self --prompts p.jsonl --cells graph,expand --json
is_json "it is JSON"
check "what is not run is no pass" grep -q "\"state\":\"not run\"" .json
"$tools/tool_tiny" m16 text=1 form=1
for format in mxfp4 nvfp4; do
    check "to $format" assay quantize m16 -o "$format" --recipe "$root/recipes/$format.yaml"
    for arith in f32 mma90; do
        ends "$format expands in $arith" 0 assay compare "$format" --self --prompts p.jsonl --cells expand \
            --arith "$arith"
        mv .stdout table; check "and to the same" grep -q "1 same, 0 differ, 0 not run" table
    done
done
ends "an unknown cell" 2 assay compare m8 --self --prompts p.jsonl --cells btach
ends "two models" 2 assay compare m8 m3 --self --prompts p.jsonl

ends "the plan" 0 assay infer -m m8 --plan
mv .stdout table; check "its buffers" grep -Eq '^activations +[0-9]+ +[0-9]+ +qkv +rope +2$' table
ends "the plan as JSON" 0 assay infer -m m8 --plan --json
is_json "it is JSON"
finish
