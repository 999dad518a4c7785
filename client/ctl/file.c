/* SPDX-License-Identifier: MIT */
#include "client/ctl/file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/commands.h"

int file_read(const char *name, size_t most_bytes, char **out, size_t *out_bytes)
{
    int standard = strcmp(name, "-") == 0, code = EXIT_GOOD;
    FILE *from = standard ? stdin : fopen(name, "re");
    char *text = malloc(most_bytes + 2);

    if (from == NULL) {
        code = complain(EXIT_IO, "%s: %s", name, strerror(errno));
        goto out;
    }
    if (text == NULL) {
        code = complain(EXIT_IO, "no memory");
        goto out;
    }
    size_t bytes = fread(text, 1, most_bytes + 1, from);
    if (ferror(from)) {
        code = complain(EXIT_IO, "%s: %s", name, strerror(errno));
        goto out;
    }
    if (bytes > most_bytes) {
        code = complain(EXIT_BAD, "%s has more than %zu bytes", name, most_bytes);
        goto out;
    }
    text[bytes] = '\0';
    *out = text;
    *out_bytes = bytes;
    text = NULL;
out:
    free(text);
    if (from != NULL && !standard)
        fclose(from);
    return code;
}
