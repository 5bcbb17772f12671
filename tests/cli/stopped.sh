#!/usr/bin/env bash
# Runs that are stopped, refused by the system or out of room: a clear error, the documented exit
# code, and nothing that looks finished.
. "$(dirname "$0")/../cli_lib.sh"

"$tools/tool_tiny" tiny ctx=4096 text=1 || exit 1
for i in $(seq 40); do
    printf '{"custom_id":"%d","prompt":"number %d","max_tokens":400,"ignore_eos":true}\n' "$i" "$i"
done >p.jsonl
check "an uninterrupted run" assay infer --batch p.jsonl -m tiny -o whole.jsonl --max-batch 2
for signal in INT TERM; do
    rm -f o.jsonl o.jsonl.run
    assay infer --batch p.jsonl -m tiny -o o.jsonl --max-batch 2 2>signal.err &
    pid=$!
    for _ in $(seq 200); do
        [ -s o.jsonl ] && break
        sleep 0.05
    done
    kill -$signal $pid
    status=0
    wait $pid || status=$?
    check "SIG$signal ends with 75" test $status = 75
    cp signal.err .stderr
    says "SIG$signal" "--resume goes on"
    check "some lines are out, all whole" python3 -c '
import json, sys
lines = open("o.jsonl").read().split("\n")
assert lines.pop() == "" and 0 < len(lines) < 40
for line in lines: json.loads(line)'
    check "the run goes on" assay infer --batch p.jsonl -m tiny -o o.jsonl --resume
    check "to the bytes of an uninterrupted one" cmp o.jsonl whole.jsonl
done
rm -f o.jsonl o.jsonl.run
assay infer --batch p.jsonl -m tiny -o o.jsonl --max-batch 2 2>/dev/null &
pid=$!
for _ in $(seq 200); do
    [ -s o.jsonl ] && break
    sleep 0.05
done
ends "a second run on the same output" 75 assay infer --batch p.jsonl -m tiny -o o.jsonl --resume
says "a second run" o.jsonl "locked by another run"
kill -KILL $pid
wait $pid 2>/dev/null
check "killed, and resumed" assay infer --batch p.jsonl -m tiny -o o.jsonl --resume
check "to the same bytes" cmp o.jsonl whole.jsonl

recipe=$root/recipes/affine4-g64.yaml
ends "a folder that cannot be written" 5 assay quantize tiny -o /proc/q --recipe "$recipe"
says "a folder that cannot be written" /proc/q
ends "an output that cannot be written" 5 assay infer --batch p.jsonl -m tiny -o /proc/o.jsonl
says "an output that cannot be written" /proc/o.jsonl
mkdir room
if mount -t tmpfs -o size=1m none room 2>/dev/null; then
    ends "a full disk" 5 assay convert tiny -o room/big
    says "a full disk" room/big "No space left"
    ends "leaves nothing that looks finished" 1 test -e room/big
    head -c 1020k /dev/zero >room/filler 2>/dev/null
    ends "a full disk under a batch" 5 assay infer --batch p.jsonl -m tiny -o room/o.jsonl
    check "leaves whole lines" python3 -c '
lines = open("room/o.jsonl").read().split("\n")
assert lines[-1] == ""'
    rm -f room/filler
    check "with room again the run goes on" assay infer --batch p.jsonl -m tiny -o room/o.jsonl --resume
    check "to the same bytes" cmp room/o.jsonl whole.jsonl
    umount room
else
    ends "a full disk (by a limit on file sizes)" 5 bash -c 'ulimit -f 64; trap "" XFSZ; exec assay convert tiny -o big'
    ends "leaves nothing that looks finished" 1 test -e big
fi
assay quantize tiny -o slow --recipe "$recipe" --threads 1 &
pid=$!
kill -KILL $pid 2>/dev/null
wait $pid 2>/dev/null
rm -rf slow
check "after a killed run the next one starts clean" assay quantize tiny -o slow --recipe "$recipe"
ends "no temporary names are left" 2 bash -c 'ls -d *.assay-tmp* 2>/dev/null'
finish
