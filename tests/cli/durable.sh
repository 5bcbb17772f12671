#!/usr/bin/env bash
# Batches that survive: crashes by a request, stops with grace, failures, inputs that change or
# grow, outputs of somebody else. The engine is a stub (tests/stub_engine.c), the rest is real.
. "$(dirname "$0")/../cli_lib.sh"

stub=$tools/assay-stub
"$tools/tool_tiny" tiny ctx=512 text=1 || exit 1
infer()
{
    "$stub" infer --batch p.jsonl -m tiny -n 12 --max-batch 4 --threads 1 "$@"
}
clean()
{
    rm -f "${1:-o}" "${1:-o}".*
}
# prompts COUNT [NUMBER TEXT]...: lines by number, some with another text.
prompts()
{
    local count=$1 i
    shift
    for i in $(seq "$count"); do printf '{"custom_id":"r%d","prompt":"number %d"}\n' "$i" "$i"; done >p.jsonl
    while [ $# -gt 0 ]; do
        sed -i "$1s/.*/{\"custom_id\":\"r$1\",\"prompt\":\"$2\"}/" p.jsonl
        shift 2
    done
}
# by_line FILE N: output line N.
by_line()
{
    sed -n "$2p" "$1"
}

# A request that ends the process: by a crash twice, then it is set aside.
prompts 60
check "a clean run" infer -o whole
for way in "~ 139" "^ 134" "\` 70"; do
    read -r text code <<<"$way"
    clean
    prompts 60 23 "a $text"
    ends "a request that ends the process ($text)" "$code" infer -o o
    ends "it is resumed, and runs alone" "$code" infer -o o --resume
    ends "it is set aside" 4 infer -o o --resume
    says "it is set aside" "line 23 ('r23') is set aside" "1 of 60 requests failed"
    by_line o 23 >.stderr
    says "its line" '"custom_id":"r23"' '"response":null' "the process ended twice"
    check "the other lines are those of a clean run" diff <(sed 23d o) <(sed 23d whole)
    cp o before
    check "it is named in OUT.run" grep -q set_aside o.run
    ends "a finished run stays as it is" 4 infer -o o --resume
    check "byte for byte" cmp o before
    ends "--retry-failed tries it again" "$code" infer -o o --retry-failed
    ends "and again" "$code" infer -o o --resume
    ends "until it is set aside" 4 infer -o o --resume
    check "with the same output" cmp o before
done
clean
prompts 60 23 "a ~" 25 "b ~"
ends "two requests that crash, side by side" 139 infer -o o
ends "the first is found alone" 139 infer -o o --resume
ends "and the second" 139 infer -o o --resume
ends "both are set aside, and nobody else" 4 infer -o o --resume
says "both" "line 25 ('r25') is set aside" "2 of 60 requests failed"
clean
prompts 30 9 "kill !"
for _ in 1 2 3; do
    ends "a kill from outside is held against nobody" 137 bash -c '"$@" 2>.stderr' - "$stub" infer \
        --batch p.jsonl -m tiny -n 12 --threads 1 -o o --resume
done

# Stops: what runs may end within the grace, or is dropped; the bytes are the same.
clean
clean whole
slow=()
for i in $(seq 40); do slow+=("$i" "slow | $i"); done
prompts 40 "${slow[@]}"
check "a clean run of slow requests" infer -o whole
for grace in 0 20; do
    clean
    "$stub" infer --batch p.jsonl -m tiny -n 12 --max-batch 4 --threads 1 -o o --grace $grace 2>.stop &
    pid=$!
    for _ in $(seq 200); do
        [ -s o.journal ] && break
        sleep 0.02
    done
    ends "a second run is refused" 75 infer -o o --resume
    says "a second run is refused" o.journal "locked by another run"
    kill -TERM $pid
    status=0
    wait $pid || status=$?
    check "SIGTERM with $grace s of grace ends with 75" test $status = 75
    check "its status says so" grep -q '"state":"stopped"' o.status.json
    cp .stop .stderr
    says "SIGTERM" "--resume goes on"
    [ $grace = 0 ] || says "SIGTERM" "running requests have 20 s to end"
    running=$(grep -o '"running":[0-9]*' o.status.json)
    if [ $grace = 0 ]; then
        check "what ran was dropped" test "$running" != '"running":0'
    else
        check "what ran has ended" test "$running" = '"running":0'
    fi
    check "it goes on" infer -o o --resume
    check "to the same bytes" cmp o whole
    check "and the same OUT.run" cmp o.run whole.run
    python3 -m json.tool o.status.json >.status
    check "the status is done" grep -q '"state": "done"' .status
done

# The input under a running batch (a file that is longer than what is read at once), and between
# runs.
clean whole
prompts 3000 "${slow[@]}"
cp p.jsonl keep.jsonl
check "a clean run of a longer file" infer -o whole
for how in changed cut; do
    clean
    cp keep.jsonl p.jsonl
    "$stub" infer --batch p.jsonl -m tiny -n 12 --max-batch 1 --threads 1 -o o 2>.changed &
    pid=$!
    for _ in $(seq 200); do
        [ -s o.journal ] && break
        sleep 0.02
    done
    if [ $how = changed ]; then
        sed 's/number 2990"/number 9999"/' keep.jsonl >p.jsonl
    else
        head -n 2500 keep.jsonl >p.jsonl
    fi
    status=0
    wait $pid || status=$?
    check "a prompt file that is $how under a running batch: 3" test $status = 3
    cp .changed .stderr
    if [ $how = changed ]; then
        says "a changed file" p.jsonl "line 2990 changed under this run"
    else
        says "a cut file" p.jsonl "changed under this run: it ends after request 2500 of 3000"
    fi
    ends "and it is no file to resume with" 3 infer -o o --resume
    says "no file to resume with" "the prompt file has changed"
    cp keep.jsonl p.jsonl
    check "with the old file it goes on" infer -o o --resume
    check "to the same bytes" cmp o whole
done
prompts 5000
clean
"$stub" infer --batch p.jsonl -m tiny -n 12 --max-batch 1 --threads 1 -o o 2>.changed &
pid=$!
for _ in $(seq 200); do
    [ -s o.journal ] && break
    sleep 0.01
done
sed -i '4999s/number/Number/' p.jsonl # another file by that name: the open one is whole
cp p.jsonl q.jsonl
wait $pid
check "a file that is replaced does not disturb" test $? = 0
ends "but it is another file to the next run" 3 infer -o o --resume
says "another file" "the prompt file has changed: request 4999 "
clean
prompts 30
check "thirty" infer -o o
prompts 40
check "ten more" infer -o o --resume
clean fresh
check "and all forty at once" infer -o fresh
check "are the same" cmp o fresh
sums=$(sha256sum o o.run o.status.json; stat -c %Y%i o o.run o.status.json)
check "a finished run" infer -o o --resume
check "stays as it is" test "$sums" = "$(sha256sum o o.run o.status.json; stat -c %Y%i o o.run o.status.json)"
prompts 20
ends "an input that has shrunk" 3 infer -o o --resume
says "an input that has shrunk" "the prompt file has changed: it has 20 requests"

# Failures.
clean
prompts 50
for i in 5 15 25 35; do sed -i "$i"'s/.*/{"bad":1}/' p.jsonl; done
ends "too many failures stop the run" 4 infer -o o --max-failures 1
says "too many failures" "stopped: 2 requests failed, at most 1 may"
ends "as many as may be do not" 4 infer -o o --resume --max-failures 2
says "as many as may be" "4 of 50 requests failed"
clean fresh
ends "the same at once" 4 infer -o fresh
check "the same bytes" cmp o fresh
ends "--retry-failed without a cure" 4 infer -o o --retry-failed
check "the same bytes" cmp o fresh
ends "another setting is another run" 3 infer -o o --resume --ignore-fields
says "another setting" "ignore_fields was '0' and is '1'"
ends "--force and --resume" 2 infer -o o --resume --force
ends "--trace and --resume" 2 infer -o o --resume --trace t.jsonl
check "--force replaces what is ours" bash -c '"$@" || [ $? = 4 ]' - "$stub" infer --batch p.jsonl -m tiny \
    -n 12 --threads 1 -o o --force
check "to the same bytes" cmp o fresh

# What is not ours.
for name in o o.run o.journal o.status.json; do
    clean
    echo precious >$name
    for flags in "" --resume --force --retry-failed; do
        # shellcheck disable=SC2086
        ends "a foreign $name, $flags" 2 infer -o o $flags
    done
    says "a foreign $name" "$name"
    check "it is left alone" test "$(cat $name)" = precious
done
clean
ends "a good run" 4 infer -o o
sed -i '1s/"version":1/"version":9/' o.run
ends "an altered head" 3 infer -o o --resume
says "an altered head" o.run "line 1" "checksum"
rm -f o
check "without OUT its OUT.run is of no use, and no hindrance" bash -c '"$@" || [ $? = 4 ]' - "$stub" infer \
    --batch p.jsonl -m tiny -n 12 --threads 1 -o o
check "the same bytes" cmp o fresh
finish
