/* SPDX-License-Identifier: MIT */
/* sealed.h: a JSON text that ends in its own sum, so that no byte of it can change unseen.
 *
 * The last member is "checksum": XXH3-128, 32 hexadecimal digits, over every byte of the file
 * before the comma in front of it. What follows that comma is always these 51 bytes:
 *
 *     ,\n"checksum": "<32 digits>"\n}\n
 *
 * Owns    the file while it is written.
 * Thread  one.
 * Fails   IO; CORRUPT when the sum is not that of the text.
 * Uses    error, xxHash.   Used by manifest, part.
 */
#ifndef DAEMON_STORE_SEALED_H
#define DAEMON_STORE_SEALED_H

#include <stddef.h>
#include <stdio.h>

#include "proto/status.h"

struct store_sum {
    char text[33]; /* XXH3-128 as hexadecimal digits */
};

struct store_sealed {
    FILE *to; /* write the text here, without the last brace */
    const char *name;
    int fd, error;
    void *state;
};

/* Makes the file anew. name is borrowed. */
zero_status store_sealed_create(int folder, const char *name, struct store_sealed *out,
                                struct zero_detail *out_detail);
/* Adds the seal; the file is on the disk on success. Always gives everything back. */
zero_status store_sealed_finish(struct store_sealed *sealed, struct zero_detail *out_detail);
void store_sealed_abandon(struct store_sealed *sealed);

/* A file that is read. */
struct store_file {
    int fd;
    const char *name; /* borrowed; for errors */
    uint64_t bytes;
};

/* Opens a regular file below `folder`, following no link. */
zero_status store_file_open(int folder, const char *name, struct store_file *out,
                            struct zero_detail *out_detail);
void store_file_close(struct store_file *file);

/* Reads exactly that many bytes. */
zero_status store_file_read(const struct store_file *file, uint64_t offset, size_t bytes, void *to,
                            struct zero_detail *out_detail);

/* Checks the seal; out_sum is over the whole file. */
zero_status store_sealed_check(const struct store_file *file, struct store_sum *out_sum,
                               struct zero_detail *out_detail);

#endif
