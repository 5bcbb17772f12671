#!/usr/bin/env bash
# Sweeps from the outside, on a tiny model: quiet when well, every gate red under its planted fault,
# nothing broken or missing that passes, bad input refused, and a real run by Debian's cron.
#
# The faults are planted by programs that stand in for assay (--program): they run the real one and
# change what one gate looks at.
. "$(dirname "$0")/../cli_lib.sh"
export OMP_NUM_THREADS=1

"$tools/tool_tiny" tiny ctx=256 text=1 || exit 1
"$tools/tool_tiny" other ctx=256 text=1 seed=77 || exit 1
for id in a b c d e; do
    printf '{"custom_id":"%s","prompt":"the %s cat sat","max_tokens":6}\n' $id $id
done >p.jsonl
recipe=$root/recipes/affine4-g64.yaml

# sheet NAME RECIPES GATES [KEY...]: writes NAME.yaml; its folder is NAME.sweep.
sheet()
{
    local name=$1 recipes=$2 gates=$3
    shift 3
    {
        printf 'why: a test\nmodels:\n- {name: tiny, path: tiny, hint: run ./demo first}\n'
        printf 'recipes: [%s]\nprompts:\n- {name: p, path: p.jsonl}\n' "$recipes"
        printf 'settings:\n- {name: f32, arith: f32, device: cpu, threads: 1}\n'
        printf 'gates: {repeat: {runs: 2}%s}\n' "${gates:+, $gates}"
        [ $# = 0 ] || printf '%s\n' "$@"
    } >"$name.yaml"
}
q4="{name: q4, path: $recipe}"
asis='{name: asis}'
quiet='limits: {seconds: 60, retries: 1, pause: 0}'

# stand_in NAME SHELL: a program that runs SHELL with the real assay as $assay.
stand_in()
{
    printf '#!/bin/bash\nassay=%s\nwork=%s\n%s\n' "$build/assay" "$work" "$2" >"$1"
    chmod +x "$1"
}
# found WHAT VERDICT TEXT...: the newest report of $sheet holds the verdict and the texts.
found()
{
    local what=$1 verdict=$2
    shift 2
    sed -n '/^| tiny/p' "$sheet.sweep/report/report.md" >.stderr
    says "$what" "| $verdict |" "$@"
}
silent()
{
    cat .stdout .stderr >.said # a check empties both
    ends "$1: nothing is said" 0 test ! -s .said
}

# ---- cron: begun first, looked at last. @reboot runs when the daemon starts, without the wait for a
# full minute; nothing else differs.
cron_pid=
sheet night "$asis" 'tokens: {demand: bits}' 'first_run: record' "$quiet"
sheet lost_model "$asis" '' "$quiet"
sed -i 's/path: tiny,/path: nowhere,/' lost_model.yaml
start_cron()
{
    mkdir -p cron.d spool run
    cat >cron.d/assay <<C
@reboot root cd $work && { $build/assay sweep night.yaml; echo \$? >>night.code; } >>night.said 2>&1; env >night.env
@reboot root cd $work && { $build/assay sweep lost_model.yaml; echo \$? >>lost.code; } >>lost.said 2>&1
C
    chmod 644 cron.d/assay
    # Its own mounts, so that the machine's tables are neither read nor changed.
    unshare -m bash -c 'mount --bind "$1/cron.d" /etc/cron.d && mount --bind /dev/null /etc/crontab &&
        mount --bind "$1/spool" /var/spool/cron && mount --bind "$1/run" /run &&
        exec env -i /usr/sbin/cron -f' cron "$work" >cron.log 2>&1 &
    cron_pid=$!
}
if [ -x /usr/sbin/cron ] && [ "$(id -u)" = 0 ] && unshare -m true 2>/dev/null; then
    start_cron
    trap '[ -z "$cron_pid" ] || kill "$cron_pid" 2>/dev/null; chmod -R u+w "$work"; rm -rf "$work"' EXIT
fi

# ---- a first run, accepting, a second -------------------------------------------------------------
sheet=s
sheet s "$asis, $q4" 'invariance: {max_batch: [1, 2], chunk: [3]}, tokens: {demand: bits}, quality: {kl: 9}' \
    'first_run: record' "$quiet"
ends "a first run that records" 0 assay sweep s.yaml
silent "a first run"
found "a first run" "NO BASELINE"
ends "JUnit is XML" 0 python3 -c 'import sys, xml.dom.minidom as m; m.parse(sys.argv[1])' s.sweep/report/junit.xml
cp s.sweep/report/junit.xml .stderr
says "no baseline is no pass" 'skipped="3"' 'name="invariance"/>'
cp s.sweep/report/report.html .stderr
says "the page" '<svg' 'NO BASELINE' 'Worst first'
cp s.sweep/sweep.prom .stderr
says "the Prometheus text" 'last_run_timestamp_seconds{sweep="s.yaml"} 1' \
    'last_success_timestamp_seconds{sweep="s.yaml"} 1' 'exit_code{sweep="s.yaml"} 0'
sed 's/^first_run.*//' s.yaml >strict.yaml
ends "a first run that does not record" 1 assay sweep strict.yaml
says "a first run that does not record" "NO BASELINE" "strict.sweep/report/report.html"
ends "accept wants a reason" 2 assay sweep accept s.yaml
ends "accept" 0 assay sweep accept s.yaml --why "the first"
cp .stdout .stderr
says "accept says what is new" "tiny/asis/p/f32: new cell" "tiny/q4/p/f32: new cell"
made=$(stat -c %Y.%i s.sweep/variants/tiny.q4/model.safetensors)
ends "a second run" 0 assay sweep s.yaml
silent "a second run"
found "a second run" "PASS"
ends "the variant was used again" 0 test "$(stat -c %Y.%i s.sweep/variants/tiny.q4/model.safetensors)" = "$made"
ends "accepting what is accepted" 0 assay sweep accept s.yaml --why again
ends "history" 0 assay sweep history s.yaml --json
is_json "history is JSON"
ends "show" 0 assay sweep show s.yaml 1 --json
is_json "show is JSON"
ends "show of no run" 3 assay sweep show s.yaml 99
ends "a run as JSON" 0 assay sweep s.yaml --json
is_json "a run's JSON"

# ---- a planted regression of each gate ------------------------------------------------------------
# $out: what follows -o on the command line.
find_out='while [ "$1" ] && [ "$1" != -o ]; do shift; done; out=$2'
stand_in nondet "\"\$assay\" \"\$@\" || exit; [ \$1 = infer ] || exit 0
    $find_out; case \$out in *run-2.jsonl) sed -i '3s/created\":0/created\":1/' \"\$out\";; esac"
stand_in path "\"\$assay\" \"\$@\" || exit; [ \$1 = infer ] || exit 0
    $find_out; case \$out in *chunk-3.jsonl) sed -i '1s/created\":0/created\":1/' \"\$out\";; esac"
stand_in tokens '[ $1 = infer ] && set -- "${@/%tiny/other}"; exec "$assay" "$@"'
stand_in worse "\"\$assay\" \"\$@\"; code=\$?; [ \$1 = compare ] || exit \$code
    $find_out; python3 - \"\$out/report.json\" <<'P'
import json, sys
r = json.load(open(sys.argv[1]))
for a in r['pairs'][0]['per_answer']:
    if 'forced' in a: a['forced']['kl'] *= 1.5
json.dump(r, open(sys.argv[1], 'w'))
P
    exit \$code"
stand_in slow '"$assay" "$@" >"$work/slow.$$"; code=$?
    [ $1 = infer ] && sed "s/\"seconds\": .*/\"seconds\": 2.0/" "$work/slow.$$" || cat "$work/slow.$$"
    exit $code'
stand_in even '"$assay" "$@" >"$work/slow.$$"; code=$?
    [ $1 = infer ] && sed "s/\"seconds\": .*/\"seconds\": 1.0/" "$work/slow.$$" || cat "$work/slow.$$"
    exit $code'
stand_in flaky "\"\$assay\" \"\$@\" >\"\$work/slow.\$\$\" || exit; [ \$1 = infer ] || exit 0
    sed 's/\"seconds\": .*/\"seconds\": 1.0/' \"\$work/slow.\$\$\"
    $find_out; case \$out in *round-2-now.jsonl) sed -i '1s/created\":0/created\":1/' \"\$out\";; esac"
stand_in crash '[ $1 = infer ] && kill -SEGV $$; exec "$assay" "$@"'
stand_in hang '[ $1 = infer ] && sleep 100; exec "$assay" "$@"'
stand_in later '[ $1 = infer ] && [ ! -e "$work/once" ] && { : >"$work/once"; exit 75; }; exec "$assay" "$@"'
stand_in never '[ $1 = infer ] && { echo "no disk" >&2; exit 5; }; exec "$assay" "$@"'
stand_in wrong '[ $1 = infer ] && { "$assay" "$@"; exit 4; }; exec "$assay" "$@"'
stand_in mute '[ $1 = infer ] && exit 0; exec "$assay" "$@"'

ends "repeat: red" 6 assay sweep s.yaml --program ./nondet
says "repeat: red" "NONDETERMINISTIC" "2 runs gave 2 outputs" "tiny/q4/p/f32"
found "repeat: nothing after it is judged" NONDETERMINISTIC
ends "what does not repeat is not accepted" 1 assay sweep accept s.yaml --why no
ends "invariance: red" 6 assay sweep s.yaml --program ./path
says "invariance: red" "chunk 3 gave"
sheet=t
sheet t "$asis" 'tokens: {demand: bits}' "$quiet"
ends "no baseline" 1 assay sweep t.yaml
ends "accept" 0 assay sweep accept t.yaml --why first
ends "tokens: red" 1 assay sweep t.yaml --program ./tokens
says "tokens: red" "FAILED" "other tokens in 5 of 5 answers"
ends "accept what changed" 0 assay sweep accept t.yaml --why "another model"
cp .stdout .stderr
says "old and new are said" "tiny/asis/p/f32: trace:" "tiny/asis/p/f32: program:"
ends "now the old one is the change" 1 assay sweep t.yaml
sheet=q
sheet q "$q4" 'quality: {}' "$quiet"
ends "no baseline" 1 assay sweep q.yaml
ends "accept" 0 assay sweep accept q.yaml --why first
ends "quality: green" 0 assay sweep q.yaml
ends "quality: red" 1 assay sweep q.yaml --program ./worse
says "quality: red" FAILED "quality: KL +"
ends "accept the worse" 0 assay sweep accept q.yaml --why worse
ends "an improvement is no failure" 0 assay sweep q.yaml
found "an improvement is said" IMPROVED
sed -i 's/quality: {}/quality: {kl: 0.000001}/' q.yaml
ends "quality: above its limit" 1 assay sweep q.yaml
says "quality: above its limit" "at most 1e-06 was allowed"
sheet=v
sheet v "$asis" 'speed: {rounds: 3}' "$quiet"
ends "no baseline" 1 assay sweep v.yaml --program ./even
ends "accept" 0 assay sweep accept v.yaml --why even
ends "the accepted program itself" 0 assay sweep v.yaml --program ./even
found "the accepted program itself" UNRESOLVED
ends "speed: red" 1 assay sweep v.yaml --program ./slow
says "speed: red" FAILED "100.0 % slower"
ends "a run for time that gives other answers" 6 assay sweep v.yaml --program ./flaky
says "a run for time that gives other answers" "round 2 now"
ends "speed: red again" 1 assay sweep v.yaml --program ./slow
ends "accept the slow" 0 assay sweep accept v.yaml --why slow
ends "speed: quicker" 0 assay sweep v.yaml --program ./even
found "speed: quicker" IMPROVED

# ---- what is broken never passes ------------------------------------------------------------------
sheet=b
sheet b "$asis" '' 'limits: {seconds: 2, retries: 1, pause: 0}'
ends "a good cell" 0 assay sweep b.yaml
ends "a crash" 70 assay sweep b.yaml --program ./crash
says "a crash" BROKEN "signal 11"
ends "a hang" 5 assay sweep b.yaml --program ./hang
says "a hang" BROKEN "stopped at its limit of 2 s"
ends "a failure that passes over" 0 assay sweep b.yaml --program ./later
stand_in half '"$assay" "$@"; code=$?; [ $1 = infer ] && [ ! -e "$work/half.once" ] && { : >"$work/half.once"; exit 75; }; exit $code'
ends "a failure that left its output" 0 assay sweep b.yaml --program ./half
ends "a failure that stays" 5 assay sweep b.yaml --program ./never
says "a failure that stays" "exit code 5 after 2 attempts: no disk"
ends "failed requests" 4 assay sweep b.yaml --program ./wrong
ends "a child that writes nothing" 3 assay sweep b.yaml --program ./mute
says "a child that writes nothing" BROKEN
ends "no model" 3 assay sweep lost_model.yaml -o no_model.sweep
says "no model" MISSING "nowhere" "run ./demo first"
cp no_model.sweep/sweep.prom .stderr
says "no success yet" 'last_success_timestamp_seconds{sweep="lost_model.yaml"} 0'
cp -r "$root/recipes" recipes
rm -rf recipes/sweeps/*.sweep
ends "the nightly sweep without the demo" 3 assay sweep recipes/sweeps/nightly.yaml
says "the nightly sweep without the demo" "run ./demo first" "3 MISSING"
sheet time "$asis, $q4" '' 'limits: {total_seconds: 1, retries: 0}'
stand_in tardy '[ $1 = infer ] && sleep 0.6; exec "$assay" "$@"'
ends "the time is over" 5 assay sweep time.yaml --program ./tardy
says "the time is over" SKIPPED "1 s were over"
cp time.sweep/report/junit.xml .stderr
says "the time is over" '<skipped message="SKIPPED: the run'
sheet=t
sed -i 's/asis/renamed/' t.yaml
ends "a cell of the baseline is lost, one is new" 1 assay sweep t.yaml
says "a cell of the baseline is lost, one is new" MISSING "no longer in the sweep" "NO BASELINE"

# ---- one lock, interruptions ----------------------------------------------------------------------
stand_in wait '[ $1 = infer ] && { echo $$ >"$work/waiting"; exec sleep 100; }; exec "$assay" "$@"'
# has_ended PID: no such process, or one that nobody has collected yet.
has_ended()
{
    for _ in $(seq 50); do
        grep -q '^State:.[^Z]' "/proc/$1/status" 2>/dev/null || return 0
        sleep 0.1
    done
    return 1
}
assay sweep b.yaml --program ./wait 2>first.said &
runner=$!
for _ in $(seq 100); do [ -s waiting ] && break; sleep 0.1; done
ends "two runs on one folder" 75 assay sweep b.yaml
says "two runs on one folder" "another run is at work"
ends "accept beside a run" 75 assay sweep accept b.yaml --why x
kill -TERM $runner
ends "SIGTERM" 75 wait $runner
ends "its child has ended" 0 has_ended "$(cat waiting)"
ends "history tells" 0 assay sweep history b.yaml
cp .stdout .stderr
says "history tells" INTERRUPTED "exit  70"
rm waiting
sed -i 's/seconds: 2/seconds: 60/' b.yaml
assay sweep b.yaml --program ./wait 2>/dev/null &
runner=$!
for _ in $(seq 100); do [ -s waiting ] && break; sleep 0.1; done
kill -KILL $runner
wait $runner 2>/dev/null
ends "a killed sweep takes its child along" 0 has_ended "$(cat waiting)"
ends "a run after one that was killed" 0 assay sweep b.yaml
assay sweep history b.yaml >.stderr
says "the killed one has no end" UNFINISHED

# ---- --notify-cmd, --prom, an empty environment ---------------------------------------------------
ends "notify" 70 assay sweep b.yaml --program ./crash --prom here.prom \
    --notify-cmd 'printf "%s|%s|%s\n" "$1" "$2" "$3" >notified'
cp notified .stderr
says "notify" "70|b.yaml: 1 BROKEN" "|b.sweep/report/report.html"
ends "--prom" 0 grep -q 'exit_code{sweep="b.yaml"} 70' here.prom
rm notified
ends "no notice when all is well" 0 env -i "$build/assay" sweep b.yaml --notify-cmd ': >notified'
ends "no notice when all is well" 1 test -e notified

# ---- variants that are there ----------------------------------------------------------------------
sheet=r
sheet r "$q4" '' "$quiet" 'variants: [made]'
mkdir made
ends "a variant of somebody" 0 assay quantize tiny -o made/mine --recipe "$recipe"
ends "it is used" 0 assay sweep r.yaml
ends "and no other made" 1 test -e r.sweep/variants/tiny.q4
printf x | dd of=made/mine/model.safetensors bs=1 seek=5000 conv=notrunc status=none
ends "a damaged one is broken" 3 assay sweep r.yaml
says "a damaged one is broken" BROKEN "model.safetensors is not what its assay.json says"
ends "and left alone" 0 test -s made/mine/model.safetensors

# ---- bad input ------------------------------------------------------------------------------------
bad()
{
    local what=$1 sed=$2
    shift 2
    sed "$sed" s.yaml >bad.yaml
    ends "$what" 3 assay sweep bad.yaml
    says "$what" bad.yaml "$@"
    ends "$what: no folder" 1 test -e bad.sweep
}
ends "no sweep file" 3 assay sweep nowhere.yaml
bad "no prompt file" 's/p.jsonl/none.jsonl/' none.jsonl "prompts: 'p'"
bad "no recipe" "s|$recipe|none.yaml|" none.yaml "recipes: 'q4'"
bad "no cells" 's/^recipes: .*/recipes: []/' "recipes: is empty"
bad "two cells of one name" 's/name: asis/name: q4/' "entries 1 and 2 are both 'q4'"
bad "an unknown key" 's/^gates/gate/' "line" "gate"
ends "a program that is none" 3 assay sweep s.yaml --program p.jsonl
ends "usage: no file" 2 assay sweep
ends "usage: --why of a run" 2 assay sweep s.yaml --why x
mkdir foreign
: >foreign/precious
ends "a folder of somebody else" 2 assay sweep s.yaml -o foreign
says "a folder of somebody else" foreign "left alone"
ends "nothing was added" 0 test "$(ls foreign)" = precious
db()
{
    python3 -c 'import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.executescript(sys.argv[2])' "$@"
}
db b.sweep/sweep.db 'PRAGMA user_version=99'
ends "a store of a newer version" 3 assay sweep b.yaml
says "a store of a newer version" "version 99"
ends "a store of a newer version" 3 assay sweep history b.yaml
db v.sweep/sweep.db 'UPDATE baselines SET form=7'
ends "a baseline of another form" 3 assay sweep v.yaml
says "a baseline of another form" "form 7" "sweep accept"
sed -i 's/.*/{"assay_report":9,"pairs":[]}/;1q' "$(ls -t q.sweep/objects/*.json | tail -1)"
for object in q.sweep/objects/*.json; do echo '{"assay_report":9,"pairs":[]}' >"$object"; done
ends "an accepted report of another version" 3 assay sweep q.yaml
says "an accepted report of another version" "version 9" "BROKEN"
rm s.sweep/objects/*.jsonl.gz
ends "an accepted trace that is gone" 3 assay sweep s.yaml --program ./tokens
says "an accepted trace that is gone" "not there any more"

# ---- what cron made of it -------------------------------------------------------------------------
if command -v systemd-analyze >/dev/null; then
    mkdir units
    for unit in "$root"/recipes/sweeps/*.service "$root"/recipes/sweeps/*.timer; do
        sed "s|/usr/local/bin/assay|$build/assay|" "$unit" >"units/$(basename "$unit")"
    done
    check "systemd accepts the units" systemd-analyze verify --man=no units/*
else
    echo "SKIP: no systemd-analyze"
fi
if [ "$cron_pid" ]; then
    for _ in $(seq 90); do [ -s night.code ] && [ -s lost.code ] && [ -s night.env ] && break; sleep 1; done
    kill "$cron_pid"
    cron_pid=
    ends "cron: exit code 0 and not a word" 0 test "$(head -1 night.code)" = 0 -a ! -s night.said
    ends "cron: a report" 0 test -s night.sweep/report/report.html
    ends "cron: its environment is bare" 1 grep -E '^(OMP_NUM_THREADS|LD_LIBRARY_PATH)=' night.env
    ends "cron: a missing model" 0 test "$(head -1 lost.code)" = 3
    cp lost.said .stderr
    says "cron: a missing model" "run ./demo first" "1 MISSING"
    ends "cron: a few lines" 0 test "$(wc -l <lost.said)" -le $((2 * $(wc -l <lost.code)))
else
    echo "SKIP: no cron, or no right to give it its own mounts"
fi
finish
