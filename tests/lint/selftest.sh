#!/usr/bin/env bash
# selftest.sh: proves that every rule of lint.sh can fail.
#
# Makes a small tree that keeps all rules, then plants one fault at a time and expects the rule to
# turn red and to name the file. The last line is "N passed, N failed, N skipped".
set -u
lint=$(cd "$(dirname "$0")" && pwd)/lint.sh
style=$(cd "$(dirname "$0")/../.." && pwd)/.clang-format
scratch=$(mktemp -d) || exit 2
trap 'rm -rf "$scratch"' EXIT
passed=0
failed=0

make_tree() {
    rm -rf "$scratch/tree"
    mkdir -p "$scratch/tree"/{common,ckpt,kernels,tests}
    cd "$scratch/tree" || exit 2
    cp "$style" .clang-format
    printf 'common:\nckpt: common\nkernels: common ckpt\n' >layers.txt
    cat >common/a.h <<'END'
/* a.h: a header. Seen by C and CUDA. */
#ifndef A_H
#define A_H

int a_get(void); /* getenv("TODAY") and time(0) are words here */

#endif
END
    cat >common/a.c <<'END'
/* a.c: its source. */
#include "common/a.h"

int a_get(void)
{
    return (int)sizeof "call getenv( or exit(1), TODOS // no comment";
}
END
    cat >common/cmd.h <<'END'
/* cmd.h: of commands. */
int cmd_run(void);
END
    cat >ckpt/b_private.h <<'END'
/* b_private.h: private. */
#include "common/a.h"
END
    printf '/* b_body.h: a fragment. Included by b.c after LANE. */\nLANE b;\n' >ckpt/b_body.h
    cat >ckpt/b.c <<'END'
/* b.c: a user. */
#include "ckpt/b_private.h"
END
    cat >kernels/cmd_k.c <<'END'
/* cmd_k.c: a command. */
#include "common/cmd.h"
END
    cat >main.c <<'END'
/* main.c: the program. */
#include <stdlib.h>

#include "common/cmd.h"

int main(void)
{
    exit(getenv("HOME") != NULL);
}
END
    cat >tests/test_a.c <<'END'
/* test_a.c: a test. */
END
}

# expect RULE FILE: the last planted fault turns RULE and nothing else red, in FILE.
expect() {
    local out status
    out=$("$lint" "$scratch/tree" 2>/dev/null)
    status=$?
    if [ "$status" -eq 1 ] && grep -q "^FAIL $1:" <<<"$out" && grep -q "^$2:[0-9]*: " <<<"$out" &&
        [ "$(grep -c '^FAIL' <<<"$out")" -eq 1 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'planted in %s for rule %s, but:\n%s\n' "$2" "$1" "$out"
    fi
    make_tree
}

make_tree
if out=$("$lint" "$scratch/tree") && [ "$(tail -1 <<<"$out")" = "12 passed, 0 failed, 0 skipped" ]; then
    passed=$((passed + 1))
else
    failed=$((failed + 1))
    printf 'the faultless tree is not green:\n%s\n' "$out"
fi

printf '#include "ckpt/c.h"\n' >>common/a.c
printf '/* c.h: of ckpt. */\nint c_get(void);\n' >ckpt/c.h
expect layers common/a.c
printf '#include "ckpt/b_private.h"\n' >kernels/k.tmp
(printf '/* k.c: peeks. */\n' && cat kernels/k.tmp) >kernels/k.c
expect layers kernels/k.c
printf '#include "common/cmd.h"\n' >>ckpt/b.c
expect layers ckpt/b.c
printf '#include "a.h"\n' >>common/a.c
expect layers common/a.c
printf '#include "common/none.h"\n' >>ckpt/b.c
expect layers ckpt/b.c
printf '#include "tests/t.h"\n' >>ckpt/b.c
printf '/* t.h: of tests. */\n' >tests/t.h
expect layers ckpt/b.c

printf '/* a.c: the same name. */\n' >kernels/a.c
expect stems kernels/a.c
printf '/* a.cu: C and CUDA. */\n' >common/a.cu
expect stems common/a.cu
mkdir tests/more && printf '/* test_a.c: again. */\n' >tests/more/test_a.c
expect stems tests/test_a.c

yes '' | head -1001 | sed 's/^/\/\/ line/' >>ckpt/b.c
expect sizes ckpt/b.c

printf '/* c.h: needs another. */\nsize_t c_get(void);\n' >common/c.h
expect headers-c11 common/c.h
printf '/* c.h: Seen by C and CUDA. */\nint c_get(int new);\n' >common/c.h
expect headers-cxx17 common/c.h

printf '/* c.c: badly set. */\nint  c;\n' >common/c.c
expect format common/c.c

printf '/* c.c: asks. */\nchar *c = getenv("X");\n' >common/c.c
expect getenv common/c.c
printf '/* c.c: looks. */\nlong c = time(NULL);\n' >common/c.c
expect clock common/c.c
printf '/* c.c: talks. */\nint c = printf("x");\n' >common/c.c
expect silence common/c.c
printf '/* c.c: knows. */\nchar *c = "/tmp/x";\n' >common/c.c
expect paths common/c.c
printf '/* c.c: waits. */\n/* TODO: write. */\n' >common/c.c
expect todo common/c.c
printf '/* TODO: write. */\n' >>tests/test_a.c
expect todo tests/test_a.c
printf 'int c;\n' >common/c.c
expect heads common/c.c
printf '/* d.c: another name. */\n' >common/c.c
expect heads common/c.c

echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
