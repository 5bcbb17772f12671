#!/usr/bin/env bash
# A real model in 8 bits held against itself, switch by switch, in both arithmetics; few tokens, for
# 30 layers of a true width. That a cell can fail is shown by tests/test_self.c.
. "$(dirname "$0")/../cli_lib.sh"

check "SmolLM2 in 8 bits" assay quantize "$model" -o q8 --recipe "$root/recipes/affine8-g64.yaml"
cat >p.jsonl <<'P'
{"custom_id": "talk", "turns": ["Name three rivers of France, and the towns that stand on them, in one sentence. Begin with the longest of them.", "And of Spain?"], "max_tokens": 4}
{"custom_id": "draw", "prompt": "The capital of Italy is", "max_tokens": 3, "temperature": 1, "seed": 5}
P
# A cell that was not run is no pass: the counts say what was.
ends "every way of feeding in f32" 0 assay compare q8 --self --prompts p.jsonl --device cpu --arith f32 \
    --repeats 1 --cells repeat,batch,order,neighbour,chunk,prefix,poison,threads,expand
mv .stdout table; check "nine cells the same" grep -qx "9 same, 0 differ, 0 not run" table
ends "and in mma90" 0 assay compare q8 --self --prompts p.jsonl --device cpu --arith mma90 --repeats 1 \
    --cells batch,chunk,prefix,expand
mv .stdout table; check "four cells the same" grep -qx "4 same, 0 differ, 0 not run" table
finish
