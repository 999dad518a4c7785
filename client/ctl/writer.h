/* SPDX-License-Identifier: MIT */
/* writer.h: JSON to a stream, by yajl; what JSON has no word for (inf, nan) becomes null.
 *
 * Owns    the generator; the stream is borrowed.
 * Order   as the text is written: in an object writer_key comes before each value.
 * Fails   writer_close says whether all was well; write errors show on the stream.
 * Used by zeroctl's commands.
 */
#ifndef CLIENT_CTL_WRITER_H
#define CLIENT_CTL_WRITER_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct writer;

struct writer *writer_open(FILE *to); /* NULL without memory, which the others accept */
bool writer_close(struct writer *writer);

void writer_key(struct writer *writer, const char *key);
void writer_text(struct writer *writer, const char *text);
void writer_count(struct writer *writer, uint64_t count);
void writer_real(struct writer *writer, double value); /* enough digits to read the same back */
void writer_truth(struct writer *writer, bool truth);
void writer_begin(struct writer *writer, char kind); /* '{' or '[' */
void writer_end(struct writer *writer, char kind);

#endif
