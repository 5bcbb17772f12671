#!/usr/bin/env bash
# The CPU oracle has the bits of an H200: answers and the hash of every operation of every layer, of
# tiny models (tests/gpu/golden), as that card gave them (tests/golden/h200.sha256). The same answers
# in another arithmetic are seen to differ.
. "$(dirname "$0")/../cli_lib.sh"

golden=$root/tests/golden/h200.sha256
sums=$root/tests/gpu/golden
check "the oracle runs" bash "$sums" assay "$tools/tool_tiny" cpu
mv .stdout ours
while read -r line; do
    check "$line" grep -qxF "$line" ours
done <"$golden"
check "no other sums" test "$(wc -l <ours)" = "$(wc -l <"$golden")"
check "in f32" bash "$sums" assay "$tools/tool_tiny" cpu f32 bits3
mv .stdout other
check "the same weights" grep -qxF "$(grep safetensors other)" "$golden"
ends "other answers or hashes" 1 grep -xFf <(grep trace other) "$golden"
finish
