/* batch_crash.c: the handler of fatal signals during a batch. Owns the handlers while armed.
 *
 * The records are made beforehand: a handler may only write. Each begins with a line end, since the
 * write that it interrupts may have left half a line. The handler runs on a stack of its own: a
 * stack that has overflowed is one of the things it tells of.
 */
#include "infer/batch_crash.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/io.h"
#include "infer/batch_journal.h"

static const int numbers[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
static const char *const names[] = {"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT"};

static struct {
    int fd;
    struct strbuf record[ARRAY_LEN(numbers)];
    struct sigaction before[ARRAY_LEN(numbers)];
    stack_t stack_before;
    void *stack;
} armed = {.fd = -1};

static void on_crash(int number)
{
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        const struct strbuf *r = &armed.record[i];
        if (numbers[i] == number && r->len && lseek(armed.fd, 0, SEEK_END) >= 0)
            (void)!write(armed.fd, r->data, r->len);
    }
    /* SA_RESETHAND: the default action comes when the signal is raised again. */
    raise(number);
}

void batch_crash_arm(int fd, const char *run)
{
    armed.fd = fd;
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        struct strbuf record = {0};
        batch_rec_died(&record, run, names[i]);
        strbuf_clear(&armed.record[i]);
        strbuf_putc(&armed.record[i], '\n');
        strbuf_append(&armed.record[i], record.data ? record.data : "", record.len);
        if (record.failed || armed.record[i].failed)
            armed.record[i].len = 0; /* no mark: the crash goes uncounted */
        strbuf_free(&record);
    }
    size_t size = (size_t)SIGSTKSZ + ((size_t)16 << 10);
    armed.stack = malloc(size);
    stack_t stack = {.ss_sp = armed.stack, .ss_size = size};
    bool own_stack = armed.stack && sigaltstack(&stack, &armed.stack_before) == 0;
    struct sigaction sa = {.sa_handler = on_crash};
    sa.sa_flags = (int)(SA_RESETHAND | SA_NODEFER) | (own_stack ? SA_ONSTACK : 0);
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
        sigaction(numbers[i], &sa, &armed.before[i]);
}

void batch_crash_disarm(void)
{
    if (armed.fd < 0)
        return;
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        sigaction(numbers[i], &armed.before[i], NULL);
        strbuf_free(&armed.record[i]);
    }
    if (armed.stack)
        sigaltstack(&armed.stack_before, NULL);
    free(armed.stack);
    armed.stack = NULL;
    armed.fd = -1;
}

void batch_crash_machine(char *boot, size_t size, int64_t *oom_kills)
{
    struct strbuf text = {0};
    *oom_kills = 0;
    boot[0] = 0;
    if (io_read_all("/proc/sys/kernel/random/boot_id", 4096, &text, NULL) == ERR_OK && text.data)
        snprintf(boot, size, "%.*s", (int)strspn(text.data, "0123456789abcdef-"), text.data);
    strbuf_clear(&text);
    if (io_read_all("/proc/vmstat", (size_t)1 << 20, &text, NULL) == ERR_OK && text.data) {
        const char *at = strstr(text.data, "\noom_kill ");
        if (at)
            *oom_kills = strtoll(at + 10, NULL, 10);
    }
    strbuf_free(&text);
}
