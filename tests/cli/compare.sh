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
