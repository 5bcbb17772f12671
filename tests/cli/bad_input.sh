#!/usr/bin/env bash
# Bad input: an error that names file, place, found and expected, the documented exit code, and no
# output that looks finished.
. "$(dirname "$0")/../cli_lib.sh"

"$tools/tool_tiny" tiny ctx=256 text=1 || exit 1
unzip -p "${model%%:*}" "${model#*:}" >real.gguf
printf '{"prompt": "the cat"}\n' >p.jsonl
infer()
{
    assay infer --batch p.jsonl -m "$1" -o out.jsonl -n 4
}
# variant NAME PYTHON: a copy of the tiny model, changed by Python code that sees `config` (changed
# in place), `header` and `data` of model.safetensors.
variant()
{
    cp -r tiny "$1"
    python3 - "$1" <<P || exit 1
import json, struct, sys
d = sys.argv[1]
config = json.load(open(d + "/config.json"))
raw = open(d + "/model.safetensors", "rb").read()
n = struct.unpack("<Q", raw[:8])[0]
header, data = json.loads(raw[8:8 + n]), raw[8 + n:]
tokenizer = json.load(open(d + "/tokenizer.json"))
tokenizer_config = json.load(open(d + "/tokenizer_config.json"))
$2
head = json.dumps(header).encode()
open(d + "/model.safetensors", "wb").write(struct.pack("<Q", len(head)) + head + data)
json.dump(config, open(d + "/config.json", "w"))
json.dump(tokenizer, open(d + "/tokenizer.json", "w"))
json.dump(tokenizer_config, open(d + "/tokenizer_config.json", "w"))
P
}
# refused WHAT DIR TEXT...
refused()
{
    local what=$1 dir=$2
    shift 2
    rm -f out.jsonl out.jsonl.run
    ends "$what" 3 infer "$dir"
    says "$what" "$@"
    ends "$what: no output" 1 test -e out.jsonl
}

ends "the tiny model is good" 0 infer tiny
rm -f out.jsonl out.jsonl.run

cp real.gguf magic.gguf
printf 'GGUX' | dd of=magic.gguf conv=notrunc status=none
ends "wrong magic" 3 assay convert magic.gguf -o out
says "wrong magic" magic.gguf
printf 'not a tensor file at all' >bad.safetensors
ends "no container" 3 assay inspect bad.safetensors
says "no container" bad.safetensors
for size in 3 10 30 2000 100000 1400000 50000000 98362431; do
    head -c $size real.gguf >cut.gguf
    ends "a GGUF cut at $size" 3 assay convert cut.gguf -o out
    says "a GGUF cut at $size" cut.gguf
    ends "no output" 1 test -e out
done
for size in 0 7 8 100 5000; do
    rm -rf cut
    cp -r tiny cut
    truncate -s $size cut/model.safetensors
    refused "safetensors cut at $size" cut model.safetensors
done
variant overlap 'a, b = sorted(header, key=lambda k: header[k].get("data_offsets", [1 << 60])[0])[:2]; header[b]["data_offsets"] = [header[a]["data_offsets"][0], header[a]["data_offsets"][0] + header[b]["data_offsets"][1] - header[b]["data_offsets"][0]]'
refused "overlapping tensors" overlap model.safetensors
cp -r tiny shard
mv shard/model.safetensors shard/model-00001-of-00002.safetensors
python3 - <<'P'
import json, struct
raw = open("shard/model-00001-of-00002.safetensors", "rb").read()
names = [k for k in json.loads(raw[8:8 + struct.unpack("<Q", raw[:8])[0]]) if k != "__metadata__"]
files = {k: "model-00001-of-00002.safetensors" for k in names}
files["model.norm.weight"] = "model-00002-of-00002.safetensors"
json.dump({"metadata": {}, "weight_map": files}, open("shard/model.safetensors.index.json", "w"))
P
refused "a missing shard" shard model-00002-of-00002.safetensors
variant shape 'config["intermediate_size"] = 704'
refused "a shape that does not fit" shape mlp expected 704
variant family 'config["model_type"] = "walrus"'
refused "an unknown family" family walrus
variant missing 'header["model.layers.0.mlp.extra.weight"] = header.pop("model.layers.0.mlp.up_proj.weight")'
refused "a missing tensor" missing model.layers.0.mlp
ends "quantize to break" 0 assay quantize tiny -o packed --recipe "$root/recipes/affine4-g64.yaml"
cp -r tiny keep
rm -rf tiny
cp -r packed tiny
variant bits 'for q in ("quantization", "quantization_config"):
    for m in config[q]:
        if isinstance(config[q][m], dict): config[q][m]["bits"] = 8'
refused "a quantization block that contradicts the shapes" bits "module" "config.json says 8 bits"
rm -rf tiny
cp -r keep tiny
variant merges 'del tokenizer["model"]["merges"]'
refused "a tokenizer without merges" merges merges
variant template 'tokenizer_config["chat_template"] = "{% for m in messages %}\n{{ m[ }}{% endfor %}"'
refused "a template with a syntax error" template template "line 2"
variant nan 'start = 8; s = header["model.layers.1.mlp.up_proj.weight"]["data_offsets"][0] + 40; data = data[:s] + struct.pack("<f", float("nan")) + data[s + 4:]'
ends "NaN is not quantized" 3 assay quantize nan -o out --recipe "$root/recipes/affine4-g64.yaml"
says "NaN is not quantized" model.layers.1.mlp.up_proj.weight 10
ends "no output" 1 test -e out
ends "no such file" 3 assay inspect nowhere

: >p.jsonl
refused "an empty prompt file" tiny p.jsonl empty
printf '{"custom_id":"x","prompt":"a"}\n{"custom_id":"x","prompt":"b"}\n' >p.jsonl
refused "duplicate ids" tiny p.jsonl "'x' stands on line 1 and again on line 2"
printf '{"prompt":"a"}\n' >p.jsonl
ends "output equal to input" 2 assay infer --batch p.jsonl -m tiny -o p.jsonl --force
says "output equal to input" p.jsonl "both the input and the output"
ends "a model onto itself" 2 assay convert tiny -o tiny --force
ends "the model is still there" 0 test -s tiny/model.safetensors
{
    python3 -c 'print("{\"custom_id\":\"long\",\"prompt\":\"%s\"}" % ("ab " * 400))'
    printf '{"custom_id":"latin","prompt":"caf\xe9"}\n{"custom_id":"good","prompt":"the"}\n'
} >p.jsonl
ends "faults of lines are error lines" 4 infer tiny
ends "three lines came out" 0 test "$(wc -l <out.jsonl)" = 3
cp out.jsonl .stderr
says "a prompt longer than the context" '"custom_id":"long"' 256
says "a prompt that is not UTF-8" '"custom_id":"line-2"' "not UTF-8" "line 2"
rm -f out.jsonl out.jsonl.run
ends "a prompt that is not UTF-8" 3 assay infer -m tiny -p "$(printf 'caf\xe9')"
seq 1 3000 | sed 's/.*/{"prompt": "number &"}/' | gzip >p.jsonl.gz
head -c 5000 p.jsonl.gz >cut.jsonl.gz
ends "a truncated gz" 3 assay infer --batch cut.jsonl.gz -m tiny -o out.jsonl
says "a truncated gz" cut.jsonl.gz

cat >r.yaml <<'Y'
why: test
rules:
  - bits: 4
    grup: 64
Y
ends "an unknown key of a recipe" 3 assay quantize tiny -o out --recipe r.yaml
says "an unknown key of a recipe" r.yaml "line 4" group
for usage in "quantize tiny" "infer -m tiny" "compare tiny" "convert" "infer -m tiny -p x --arith f64" \
    "quantize tiny -o out --recpe x"; do
    # shellcheck disable=SC2086
    ends "usage: $usage" 2 assay $usage
done
ends "an unknown command" 2 assay quantise
says "an unknown command" "did you mean 'quantize'"
finish
