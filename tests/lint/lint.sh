#!/usr/bin/env bash
# lint.sh [ROOT]: the rules of the tree that no compiler knows.
#
# Prints every fault as "file:line: text" and one line for each rule; the last line is
# "N passed, N failed, 0 skipped", one for each rule. The exit status is 1 when a rule failed. A
# tool that is not installed fails its rule: a rule that was not looked at has not passed.
# selftest.sh plants one fault for each rule and expects it to be found.
set -u
export LC_ALL=C
cd "${1:-$(dirname "$0")/../..}" || exit 2
root=$PWD
scratch=$(mktemp -d) || exit 2
trap 'rm -rf "$scratch"' EXIT

size_warn=600
size_fail=1000
jobs=$(nproc 2>/dev/null || echo 1)
passed=0
failed=0

# Folders with a layer, and the files that the rules are about.
folders=$(sed -n 's/^\([a-z]*\):.*/\1/p' layers.txt)
present=
for folder in $folders; do
    if [ -d "$folder" ]; then
        present="$present $folder"
    fi
done
# shellcheck disable=SC2086 # the list is split on purpose
sources=$( (ls main.c 2>/dev/null; find $present -type f \( -name '*.c' -o -name '*.h' -o \
    -name '*.cu' -o -name '*.cuh' \) 2>/dev/null) | sort)
tests=$(find tests -type f \( -name '*.c' -o -name '*.h' -o -name '*.cu' \) 2>/dev/null | sort)
if [ -z "$sources" ]; then
    echo "lint: no sources under $root" >&2
    exit 2
fi

# verdict RULE: counts a rule by the faults that it wrote to $scratch/RULE.
verdict() {
    local n
    n=$(wc -l <"$scratch/$1")
    cat "$scratch/$1"
    if [ "$n" -eq 0 ]; then
        passed=$((passed + 1))
        echo "PASS $1"
    else
        failed=$((failed + 1))
        echo "FAIL $1: $n faults"
    fi
}

# Code without comments, string and character literals kept, as file:line:code.
strip() {
    awk '
    FNR == 1 { comment = 0 }
    {
        out = ""; n = length($0); i = 1
        while (i <= n) {
            two = substr($0, i, 2)
            if (comment) {
                if (two == "*/") { comment = 0; i += 2 } else { i++ }
                continue
            }
            if (two == "/*") { comment = 1; out = out " "; i += 2; continue }
            if (two == "//") break
            c = substr($0, i, 1)
            if (c == "\"" || c == "\047") {
                start = i++
                while (i <= n && substr($0, i, 1) != c)
                    i += substr($0, i, 1) == "\\" ? 2 : 1
                out = out substr($0, start, i - start + 1); i++
                continue
            }
            out = out c; i++
        }
        if (out ~ /[^ \t]/) print FILENAME ":" FNR ":" out
    }' "$@"
}

# shellcheck disable=SC2086
strip $sources >"$scratch/code"
# Literals emptied: words inside a text are no calls.
sed 's/"\([^"\\]\|\\.\)*"/""/g' "$scratch/code" >"$scratch/calls"

# calls_outside RULE ALLOWED-REGEX NAMES TEXT: calls of the named functions in files whose path
# does not match.
calls_outside() {
    grep -E "(^|[^A-Za-z0-9_.>])($3) *\(" "$scratch/calls" | grep -vE "^($2):" |
        sed -E "s/^([^:]*:[0-9]+):.*/\1: $4/" >"$scratch/$1"
    verdict "$1"
}

rule_layers() {
    grep -E '^[^:]*:[0-9]+: *# *include *"' "$scratch/code" |
        awk -v layers=layers.txt '
        BEGIN {
            while ((getline line < layers) > 0) {
                split(line, part, ":"); known[part[1]] = 1; allowed[part[1], part[1]] = 1
                n = split(part[2], below, " ")
                for (i = 1; i <= n; i++) allowed[part[1], below[i]] = 1
            }
        }
        {
            split($0, part, ":"); file = part[1]; place = part[1] ":" part[2] ": "
            match($0, /"[^"]*"/); header = substr($0, RSTART + 1, RLENGTH - 2)
            from = file; sub(/\/.*/, "", from)
            to = header; sub(/\/.*/, "", to)
            name = file; sub(/.*\//, "", name)
            across = name == "main.c" || name ~ /^cmd_.*\.c$/
            if (header !~ /\// || header ~ /\.\.?\//) {
                print place "\"" header "\" is not named from the root"; next
            }
            if ((getline line < header) < 0) { print place "no file " header; next }
            close(header)
            if (!(to in known)) print place "folder " to " is in no layer"
            else if (header == "common/cmd.h" && !across)
                print place "cmd.h is for main.c and cmd_*.c alone"
            else if (header ~ /_private\.h$/ && from != to)
                print place header " is private to " to
            else if (!across && !((from, to) in allowed))
                print place from " may not see " to
        }' >"$scratch/layers"
    verdict layers
}

rule_stems() {
    for set in sources tests; do
        # A stem belongs to one folder; there a .c and a .h (or .cu and .cuh) of it are a pair.
        # shellcheck disable=SC2086
        printf '%s\n' ${!set} | awk '
        NF {
            file = $0; dir = "."; if (match(file, /.*\//)) dir = substr(file, 1, RLENGTH - 1)
            name = file; sub(/.*\//, "", name)
            stem = name; sub(/\.[a-z]+$/, "", stem)
            kind = name ~ /\.cuh?$/ ? "cuda" : "c"
            key = stem SUBSEP name
            if (name in first) print file ":1: the name " name " is also " first[name]
            else if (stem in home && home[stem] != dir)
                print file ":1: the stem " stem " is also in " home[stem]
            else if (stem in form && form[stem] != kind)
                print file ":1: the stem " stem " is both C and CUDA"
            first[name] = file; home[stem] = dir; form[stem] = kind
        }'
    done >"$scratch/stems"
    verdict stems
}

rule_sizes() {
    # shellcheck disable=SC2086
    for file in $sources $tests; do
        lines=$(wc -l <"$file")
        if [ "$lines" -gt "$size_fail" ]; then
            echo "$file:$lines: $lines lines, at most $size_fail"
        elif [ "$lines" -gt "$size_warn" ]; then
            echo "warning: $file:$lines: $lines lines, better at most $size_warn" >&2
        fi
    done >"$scratch/sizes"
    verdict sizes
}

# alone LANGUAGE-FLAGS: compiles each header of standard input by itself, several at once.
alone() {
    local flags
    flags=$(pkg-config --cflags jansson libcyaml yaml-0.1 libarchive libpcre2-8 2>/dev/null)
    xargs -r -P "$jobs" -I{} sh -c "
        printf '#include \"%s\"\n' {} | $1 $flags -D_GNU_SOURCE -DASSAY_VERSION='\"0\"' -I. \
            -Wall -Wextra -Wpedantic -Werror -fsyntax-only - 2>&1 |
        sed -n '/error:/{s/^\([^ ]*:[0-9]*\):[0-9]*: /\1: does not stand alone: /;p;q}' |
        sed 's|^<stdin>:[0-9]*|{}:1|'"
}

# A fragment is written for files that have defined its words, and its head says by whom it is
# included; it cannot stand alone. Headers of CUDA need its compiler.
rule_headers_c() {
    # shellcheck disable=SC2086
    printf '%s\n' $sources | grep '\.h$' | while read -r header; do
        if ! sed -n 1,12p "$header" | grep -qE '[Ii]ncluded by|include it after' &&
            ! grep -q '#include <cuda' "$header"; then
            echo "$header"
        fi
    done | alone "${CC:-cc} -std=c11 -x c" >"$scratch/headers-c11"
    verdict headers-c11
}

rule_headers_cxx() {
    # shellcheck disable=SC2086
    printf '%s\n' $sources | grep '\.h$' | while read -r header; do
        if grep -qE 'Seen by C and CUDA|__CUDACC__' "$header"; then
            echo "$header"
        fi
    done | alone "${CXX:-c++} -std=c++17 -x c++" >"$scratch/headers-cxx17"
    verdict headers-cxx17
}

rule_format() {
    if ! command -v clang-format >/dev/null; then
        echo "lint.sh:1: clang-format is not installed" >"$scratch/format"
    else
        # shellcheck disable=SC2086
        printf '%s\n' $sources $tests | xargs -P "$jobs" -n 8 clang-format --dry-run -Werror 2>&1 |
            sed -nE 's/^([^:]*:[0-9]+):[0-9]+: error: .*/\1: not formatted/p' |
            sort -u >"$scratch/format"
    fi
    verdict format
}

rule_paths() {
    grep -E '"[^"]*(/work|/tmp|/home|/root|/Users|/mnt)(/|")' "$scratch/code" |
        sed -E 's/^([^:]*:[0-9]+):.*/\1: an absolute path of one machine/' >"$scratch/paths"
    verdict paths
}

rule_todo() {
    # shellcheck disable=SC2086
    grep -nHE '\b(TODO|FIXME|XXX|HACK)\b' $sources $tests |
        sed -E 's/^([^:]*:[0-9]+):.*/\1: unfinished work is not left in comments/' >"$scratch/todo"
    verdict todo
}

rule_heads() {
    # shellcheck disable=SC2086
    for file in $sources $tests; do
        read -r first <"$file"
        case $first in
        "/* $(basename "$file"): "?*) ;;
        *) echo "$file:1: expected the head '/* $(basename "$file"): what it owns'" ;;
        esac
    done >"$scratch/heads"
    verdict heads
}

rule_layers
rule_stems
rule_sizes
rule_headers_c
rule_headers_cxx
rule_format
calls_outside getenv 'main\.c' 'getenv|secure_getenv|setenv|putenv' \
    'the environment is read in main.c alone'
calls_outside clock 'common\/log\.c|[^:]*bench[^:]*' \
    'time|clock|clock_gettime|gettimeofday|localtime|localtime_r|gmtime|gmtime_r|ctime|strftime' \
    'no clock outside of common\/log.c and bench'
calls_outside silence 'main\.c|common\/log\.c|jobs\/child\.c|([^:]*\/)?cmd_[^:\/]*\.c' \
    'printf|vprintf|puts|putchar|perror|exit|_exit|abort' \
    'library code neither prints nor ends the program'
rule_paths
rule_todo
rule_heads
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
