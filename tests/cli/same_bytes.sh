#!/usr/bin/env bash
# One answer whatever made it: checkpoints and outputs have the same bytes from gcc's and clang's
# program, from 1, 2 and 4 threads, and from every instruction set that runs here.
. "$(dirname "$0")/../cli_lib.sh"

clang=$(dirname "$build")/build-clang/assay
[ -x "$clang" ] || { echo "FAIL no $clang: the clang build is part of this test"; failed=1; finish; exit; }
sums()
{
    (cd "$1" && find . -type f | sort | xargs sha256sum)
}
isas=$(assay doctor --json | python3 -c 'import json, sys; print(" ".join(json.load(sys.stdin)["processor"]["variants"]))')
echo "instruction sets here: $isas"
check "there is at least plain C" test -n "$isas"
check "convert" assay convert "$model" -o m
check "convert by clang's program" "$clang" convert "$model" -o m.clang
check "the same checkpoint" diff <(sums m) <(sums m.clang)
check "expand" assay convert m -o m16 --expand bf16
check "expand by clang's program" "$clang" convert m -o m16.clang --expand bf16
check "the same checkpoint" diff <(sums m16) <(sums m16.clang)
recipe=$root/recipes/affine4-head8.yaml
check "quantize" assay quantize m16 -o q --recipe "$recipe" --threads 2
for threads in 1 4; do
    check "on $threads threads" assay quantize m16 -o "q$threads" --recipe "$recipe" --threads $threads
    check "the same checkpoint" diff <(sums q) <(sums "q$threads")
done
for isa in $isas; do
    check "clang's $isa" "$clang" quantize m16 -o "q.$isa" --recipe "$recipe" --isa "$isa"
    check "the same checkpoint" diff <(sums q) <(sums "q.$isa")
done
cat >p.jsonl <<'P'
{"custom_id": "a", "messages": [{"role": "user", "content": "Name three rivers."}], "max_tokens": 10, "logprobs": true, "top_logprobs": 3}
{"custom_id": "b", "prompt": "The old bridge", "max_tokens": 10, "temperature": 1, "seed": 9, "logprobs": true}
P
for arith in f32 mma90; do
    check "infer in $arith" assay infer --batch p.jsonl -m q -o "$arith.jsonl" --arith $arith \
        --trace "$arith.trace.jsonl" --trace-level layers
    for isa in $isas; do
        check "clang's $isa, one thread" "$clang" infer --batch p.jsonl -m q -o "$arith.$isa.jsonl" \
            --arith $arith --isa "$isa" --threads 1 --trace "$arith.$isa.trace.jsonl" \
            --trace-level layers
        check "the same answers and log-probabilities" cmp "$arith.jsonl" "$arith.$isa.jsonl"
        check "the same bits of every operation" cmp "$arith.trace.jsonl" "$arith.$isa.trace.jsonl"
    done
done
finish
