# cli_lib.sh: what tests/cli/*.sh share. Sourced with the build folder and the real model as
# arguments: SCRIPT BUILD MODEL. Each check counts; the last line is "N passed, N failed, N skipped".

build=$(cd "$1" && pwd)
model=$2
case $model in /*) ;; *) model=$PWD/$model ;; esac
tools=$build/tests
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PATH="$build:$PATH" OMP_NUM_THREADS="${OMP_NUM_THREADS:-2}"
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
cd "$work" || exit 5
passed=0 failed=0

# check WHAT COMMAND...: the command succeeds.
check()
{
    local what=$1
    shift
    if "$@" >.stdout 2>.stderr; then
        passed=$((passed + 1))
        echo "ok   $what"
    else
        failed=$((failed + 1))
        echo "FAIL $what: $* ended with $?"
        sed 's/^/     /' .stdout .stderr | tail -12
    fi
}

# ends WHAT CODE COMMAND...: the command ends with that exit code.
ends()
{
    local what=$1 code=$2 status=0
    shift 2
    "$@" >.stdout 2>.stderr || status=$?
    if [ $status = "$code" ]; then
        passed=$((passed + 1))
        echo "ok   $what"
    else
        failed=$((failed + 1))
        echo "FAIL $what: $* ended with $status, expected $code"
        sed 's/^/     /' .stdout .stderr | tail -12
    fi
}

# says WHAT TEXT...: standard error of the last command holds each text.
says()
{
    local what=$1 text
    shift
    for text; do
        if grep -qF -- "$text" .stderr; then
            passed=$((passed + 1))
        else
            failed=$((failed + 1))
            echo "FAIL $what: the message does not say '$text':"
            sed 's/^/     /' .stderr | tail -4
        fi
    done
}

# is_json WHAT: standard output of the last command is one JSON value.
is_json()
{
    mv .stdout .json
    check "$1" python3 -m json.tool .json
}

finish()
{
    printf '%d passed, %d failed, 0 skipped\n' "$passed" "$failed"
    [ "$failed" = 0 ] && [ "$passed" -gt 0 ]
}
