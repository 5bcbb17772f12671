/* tool_tiny.c: writes a tiny model with its text side into a folder that does not exist yet.
 *
 *   tool_tiny DIR [CTX]
 */
#include <stdio.h>
#include <stdlib.h>

#include "tests/tiny_model.h"
#include "tests/tiny_text.h"

int main(int argc, char **argv)
{
    struct tiny_model m = tiny_model_default();
    struct err e = {.text = ""};
    if (argc < 2) {
        fprintf(stderr, "usage: tool_tiny DIR [CTX]\n");
        return 2;
    }
    if (argc > 2)
        m.ctx = atoi(argv[2]);
    if (tiny_model_write(argv[1], &m, &e) != ERR_OK || tiny_text_write(argv[1], &e) != ERR_OK) {
        fprintf(stderr, "tool_tiny: %s\n", e.text);
        return 1;
    }
    return 0;
}
