#!/usr/bin/env bash
# QAT checkpoints: float folders back onto their grids, what lies on none, latent weights.
. "$(dirname "$0")/../cli_lib.sh"

"$tools/tool_tiny" plain ctx=256 text=1 || exit 1
# actions FOLDER: how many tensors of the manifest went which way.
actions()
{
    python3 -c 'import collections, json, sys
t = json.load(open(sys.argv[1] + "/assay.json"))["tensors"]
c = collections.Counter(x["action"] for x in t)
print(*(f"{k}={c[k]}" for k in sorted(c)))' "$1"
}
# stacks FOLDER: names and shapes of the experts' packed tensors.
stacks()
{
    python3 -c 'import json, struct, sys
f = open(sys.argv[1] + "/model.safetensors", "rb")
head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
stacked = {n: t["shape"] for n, t in head.items() if n.endswith(".weight") and len(t["shape"]) == 3}
assert stacked and not any(".experts." in n for n in head), sorted(head)
print(sorted(stacked.items()))' "$1"
}
# set_config FOLDER PYTHON: changes config.json.
set_config()
{
    python3 -c "import json, sys
p = sys.argv[1] + '/config.json'
config = json.load(open(p))
$2
json.dump(config, open(p, 'w'))" "$1"
}

cat >linears.yaml <<'Y'
why: matrices of the layers, as trainers quantize them
rules:
  - role: attention, mlp
    bits: 4
    group: 32
Y
cat >head.yaml <<'Y'
why: the rest
rules:
  - role: embedding, head
    bits: 8
    group: 64
Y
cat >all.yaml <<'Y'
why: all again
rules:
  - bits: 4
    group: 64
Y
check "packed" assay quantize plain -o packed --recipe linears.yaml
check "expanded" assay convert packed -o float --expand bf16 --dtype bf16
check "imported" assay convert float -o qat --verify
says "imported" "14 of 16 float matrices lie on a grid" "not on a grid: model.embed_tokens.weight" \
    "not on a grid: lm_head.weight" "every value of all"
check "expanded again" assay convert qat -o again --expand bf16
check "the same bytes" cmp float/model.safetensors again/model.safetensors
check "14 on the grid" test "$(actions qat)" = "copy=7 grid=14"
check "any number of threads" assay convert float -o one -t 1
check "the same bytes with one" cmp qat/model.safetensors one/model.safetensors
check "it runs" assay infer -m qat -p "the cat" -n 4

check "not looked for" assay convert float -o dense --no-grid
check "then all is a copy" test "$(actions dense)" = "copy=21"
check "a recipe for the rest" assay convert float -o both --recipe head.yaml
check "grids stay grids" test "$(actions both)" = "copy=5 encode=2 grid=14"
check "no recipe takes a grid" assay convert float -o kept --recipe all.yaml
check "grids go before rules" test "$(actions kept)" = "copy=5 encode=2 grid=14"

check "fit anew" assay quantize qat -o anew --recipe all.yaml
says "fit anew" "14 matrices lie on the grid that they were trained on"
check "left alone" assay quantize qat -o alone --recipe head.yaml
check "no warning then" test "$(grep -c 'were trained on' .stderr)" = 0

check "inspect" assay inspect float
cp .stdout .stderr
says "inspect" "14 of 16 float matrices lie on one, by a sample" "4 bits, group 32" \
    "on none: lm_head.weight"
check "inspect all" assay inspect float --grid
cp .stdout .stderr
says "inspect all" "14 of 16 float matrices lie on one"
ends "inspect as JSON" 0 assay inspect float --json
is_json "inspect as JSON"

cp -r plain latent
set_config latent 'config["quantization_config"] = {"quantize_embeddings": False}'
check "a latent checkpoint is kept" assay convert latent -o l0
says "a latent checkpoint is kept" warning "latent" --qat-formula
check "by a formula" assay convert latent -o l1 --qat-formula torchao:4:32 --verify
says "by a formula" warning torchao:4:32
check "14 by the formula" test "$(actions l1)" = "copy=7 encode=14"
for formula in q4_0 ct ct:8:64 torchao-no-clip; do
    check "by $formula" assay convert latent -o "l-$formula" --qat-formula "$formula" --verify
done
check "q4_0 lies on its grid again" assay convert l-q4_0 -o l2 --expand f32
check "as floats" assay convert l2 -o l3
says "as floats" "14 of 16 float matrices lie on a grid"
ends "an unknown formula" 2 assay convert latent -o out --qat-formula magic
says "an unknown formula" magic torchao
ends "bits of a formula" 2 assay convert latent -o out --qat-formula torchao:7
ends "a formula for a grid" 3 assay convert float -o out --qat-formula q4_0
says "a formula for a grid" "lies on a grid" latent
ends "a formula without a look" 2 assay convert latent -o out --qat-formula q4_0 --no-grid
ends "a recipe to expand" 2 assay convert float -o out --expand f32 --recipe all.yaml
ends "no output" 1 test -e out

# A tensor for each expert, all on grids: packed on them, and stacked.
for family in 1 2; do
    m=moe$family
    "$tools/tool_tiny" "$m-float" experts=$family form=3 bits=4 group=32 || exit 1
    "$tools/tool_tiny" "$m-packed" experts=$family form=2 bits=4 group=32 || exit 1
    check "experts on grids ($m)" assay convert "$m-float" -o "$m" --verify
    says "experts on grids ($m)" "lie on a grid" "every value of all"
    check "stacks of the packed form ($m)" stacks "$m-packed"
    cp .stdout "$m.stacks"
    check "they are stacked ($m)" stacks "$m"
    cp .stdout "$m.got"
    check "in the same shapes ($m)" cmp "$m.got" "$m.stacks"
    check "expanded ($m)" assay convert "$m" -o "$m-again" --expand bf16
    check "of the packed form ($m)" assay convert "$m-packed" -o "$m-other" --expand bf16
    check "the same bytes ($m)" cmp "$m-again/model.safetensors" "$m-other/model.safetensors"
done
finish
