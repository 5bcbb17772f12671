#!/usr/bin/env bash
# bench on shapes: synthetic checkpoints are valid and the same every time; the engine's figures
# have their null arm; wrong names and numbers are refused.
. "$(dirname "$0")/../cli_lib.sh"

few="--no-kernels --device cpu --rows 1,3 --prefill 70 --mixed 2 --context 66 --rounds 5 --seconds 0.001 --batch-tokens 32"
for shape in tiny-llama tiny-mixtral tiny-qwen3-moe tiny-gemma4-a4b tiny-gemma4-e; do
    check "make $shape" assay bench --make-checkpoint $shape $shape
    check "make it again, on one thread" assay bench --make-checkpoint $shape $shape.2 --threads 1
    check "the same bytes" diff -r $shape $shape.2
    check "inspect it" assay inspect $shape --json
    check "requantize it" assay quantize $shape -o $shape.8 --recipe "$root/recipes/affine8-g64.yaml"
    for arith in f32 mma90; do
        # shellcheck disable=SC2086
        check "the engine on it in $arith" assay bench -m $shape $few --arith $arith --json
        is_json "in JSON"
    done
done
cat >look.py <<'P'
import json, sys
engine = json.load(open(sys.argv[1]))["engine"]
figures = engine["figures"]
assert engine["synthetic"] and engine["model"] == "tiny-mixtral"
assert [(f["what"], f.get("rows"), f.get("context", f.get("tokens"))) for f in figures] == \
    [("decode", 1, 66), ("decode", 3, 66), ("prefill", None, 70), ("mixed", 2, 66)]
assert figures[3]["tokens"] == 30 and "tokens" not in figures[0]
assert engine["weights_bytes_per_s"] > 0 and engine["peak_memory_bytes"] > engine["weight_bytes"]
for f in figures:
    assert f["rounds"] == 5 and f["low_seconds"] <= f["seconds"] <= f["high_seconds"]
    assert abs(f["null_ratio"] - f["null_seconds"] / f["seconds"]) < 1e-9
P
# shellcheck disable=SC2086
check "a shape without a checkpoint" assay bench --shape tiny-mixtral $few --json
mv .stdout figures.json
check "its figures" python3 look.py figures.json
configs=$root/tests/golden/configs
check "inspect a config alone" assay inspect "$configs/gemma-4-e4b.json"
check "plan it" assay infer --plan -m "$configs/gemma-4-e4b.json" --max-ctx 64 --batch-tokens 64 --json
is_json "in JSON"
ends "plan a folder that is none" 3 assay infer --plan -m none.json
echo '{"model_type":"gemma4_text","activation_sparsity_pattern":[0.95]}' >sparse.json
ends "plan a config that cannot be run" 3 assay infer --plan -m sparse.json
says "plan a config that cannot be run" "sparse.json" "activation_sparsity_pattern"
ends "bench one" 3 assay bench --shape sparse.json
ends "an unknown shape" 2 assay bench --shape gpt-7
says "an unknown shape" "gpt-7" "mixtral-8x7b"
ends "a folder that is there" 2 assay bench --make-checkpoint tiny-llama look.py
ends "no folder" 2 assay bench --make-checkpoint tiny-llama
ends "two models" 2 assay bench --shape tiny-llama -m tiny-llama
ends "a list with a word" 2 assay bench --shape tiny-llama --device cpu --no-kernels --rows 1,two
says "a list with a word" "--rows '1,two'"
ends "cuBLAS without CUDA" 2 assay bench --cublas --device cpu --no-kernels
ends "more context than the model has" 2 assay bench --shape tiny-llama --device cpu --no-kernels \
    --context 20000
says "more context than the model has" "16384"
finish
