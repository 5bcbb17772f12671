#!/usr/bin/env bash
# The main job on the real model, with the exit codes that the documents promise: convert, expand,
# quantize, infer, compare; nothing overwritten, equal runs equal, resumed runs equal.
. "$(dirname "$0")/../cli_lib.sh"

cat >p.jsonl <<'P'
{"custom_id": "a", "messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 12}
{"custom_id": "b", "prompt": "A stitch in time saves", "max_tokens": 12, "logprobs": true, "top_logprobs": 2}
{"custom_id": "c", "turns": ["Hello!", "What did I say?"], "max_tokens": 8}
{"custom_id": "d", "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0.8, "seed": 5}
P
sums()
{
    (cd "$1" && find . -type f ! -name speed.json | sort | xargs sha256sum)
}

check "convert the GGUF out of its archive" assay convert "$model" -o m
check "expand to bf16" assay convert m -o m16 --expand bf16
check "expand to f32" assay convert m -o m32 --expand f32
ends "an existing output is refused" 2 assay convert m -o m16 --expand bf16
check "and replaced by --force, being ours" assay convert m -o m16 --expand bf16 --force
for recipe in affine4-g64 affine8-g64 affine4-head8; do
    check "quantize by $recipe, verified" assay quantize m16 -o "$recipe" --verify \
        --recipe "$root/recipes/$recipe.yaml"
done
check "quantize again on one thread" assay quantize m16 -o again --threads 1 \
    --recipe "$root/recipes/affine4-g64.yaml"
check "the same bytes from any number of threads" diff <(sums affine4-g64) <(sums again)
check "a plan without output" assay quantize m16 --dry-run --recipe "$root/recipes/affine4-g64.yaml"
check "inspect a packed folder" assay inspect affine4-g64
check "inspect an archive member as JSON" assay inspect "$model" --json
is_json "the JSON parses"

check "words of a completion" bash -c '. "$0/docs/completion.bash" && COMP_WORDS=(assay quantize --rec) \
    COMP_CWORD=2 && _assay && [ "${COMPREPLY[*]}" = --recipe ]' "$root"
check "infer" assay infer --batch p.jsonl -m affine4-g64 -o o.jsonl
check "four lines" test "$(wc -l <o.jsonl)" = 4
ends "an existing output is refused" 2 assay infer --batch p.jsonl -m affine4-g64 -o o.jsonl
check "another batch and chunk, the same bytes" assay infer --batch p.jsonl -m affine4-g64 \
    -o o2.jsonl --max-batch 1 --chunk 7 --no-prefix
check "equal" cmp o.jsonl o2.jsonl
check "plain C on one thread, the same bytes" assay infer --batch p.jsonl -m affine4-g64 \
    -o o3.jsonl --isa c --threads 1
check "equal" cmp o.jsonl o3.jsonl
head -c $(($(wc -c <o.jsonl) * 6 / 10)) o.jsonl >o2.jsonl
check "a torn output is resumed" assay infer --batch p.jsonl -m affine4-g64 -o o2.jsonl --resume \
    --max-batch 2
check "to the same bytes" cmp o.jsonl o2.jsonl
ends "another model cannot go on with it" 3 assay infer --batch p.jsonl -m affine8-g64 \
    -o o2.jsonl --resume
says "which field differs" "model was 'affine4-g64' and is 'affine8-g64'"
ends "the oracle has no model of another card" 2 assay infer -m affine4-g64 -p "The sea is" -n 4 \
    --device cpu --arith mma80
says "which" "the oracle models mma90 only; mma80 was not measured"
check "one prompt, streamed" assay infer -m affine4-g64 -p "The sea is" -n 4
check "traces" assay infer --batch p.jsonl -m affine4-g64 -o t.jsonl --trace t.trace.jsonl.gz \
    --trace-level layers
for form in f.jsonl f.jsonl.gz f.trace f.trace.gz; do
    check "a trace as $form" assay infer --batch p.jsonl -m affine4-g64 -o f.out --force --trace $form \
        --trace-full 0,3
    check "holds the same" assay compare t.trace.jsonl.gz $form --exact -o forms --force
    check "is inspected" assay inspect $form
done
mv .stdout .inspect; check "with its answers" grep -q "^5 answers\|^c  *1 " .inspect
ends "numbers that are none" 2 assay infer --batch p.jsonl -m affine4-g64 -o g.out --trace g.jsonl \
    --trace-full 0,x
check "a text is scored" assay infer -m affine4-g64 --score --text "$root/README.md" --ctx 128 --json
is_json "the score parses"
check "by llama.cpp's windows" assay infer -m affine4-g64 --score --text "$root/README.md" \
    --ctx 128 --llama-windows
ends "prompts are scored, conversations are not" 4 assay infer --score --batch p.jsonl \
    -m affine4-g64 -o s.jsonl
check "three scores and why not" test "$(grep -c '"score":{' s.jsonl)" = 3
head -n 2 p.jsonl >other.jsonl
check "a trace of fewer prompts" assay infer --batch other.jsonl -m affine4-g64 -o t2.jsonl \
    --trace t2.trace.jsonl

check "packed and expanded are the same bits in mma90" assay compare m m16 --arith mma90 --exact \
    --no-floor --no-judge --prompts p.jsonl -o same
check "and in f32, expanded to f32" assay compare m m32 --exact --no-floor --no-judge \
    --prompts p.jsonl -o same32
ends "4 bits differ" 1 assay compare m16 affine8-g64 affine4-g64 --prompts p.jsonl --no-floor \
    --no-judge -o report
ends "again" 1 assay compare m16 affine8-g64 affine4-g64 --prompts p.jsonl --no-floor \
    --no-judge -o report2 --max-batch 2
check "equal reports but for the times" diff <(sums report) <(sums report2)
check "the report is whole" test -s report/report.html -a -s report/report.md
check "its JSON parses" python3 -m json.tool report/report.json
ends "traces are compared without models" 1 assay compare report/trace-m16.trace.gz \
    report/trace-affine4-g64.trace.gz -o traces
ends "other prompts are not comparable" 3 assay compare report/trace-m16.trace.gz t2.trace.jsonl \
    -o never
says "why" "NOT COMPARABLE"
finish
