/* SPDX-License-Identifier: MIT */
/* safetensors.h: tensors by name from other people's safetensors files, as fp32.
 *
 * Nothing in a header is believed: sizes multiply without overflow, lie within the file, and cover
 * its data without overlap or hole; no name comes twice, in one file or in two.
 *
 * Owns    the fds and tables.
 * Thread  one at a time.
 * Fails   CORRUPT and TOO_LARGE with file and tensor, UNSUPPORTED for a dtype that is read but no
 *         float, NOT_FOUND, IO, NO_MEMORY.
 * Uses    parse.   Used by import.
 */
#ifndef DAEMON_STORE_SAFETENSORS_H
#define DAEMON_STORE_SAFETENSORS_H

#include "daemon/store/parse.h"
#include "proto/layout.h"

struct store_dtype; /* a row of safetensors.c */

struct store_tensor {
    char *name;
    const struct store_dtype *dtype;
    uint32_t file;
    uint32_t dims;
    uint64_t shape[ZERO_MAX_DIMS];
    uint64_t count;      /* elements */
    uint64_t begin, end; /* bytes of the file's data */
};

struct store_source_file {
    char *path;
    struct store_file file;
    uint64_t data; /* where it begins in the file */
};

struct store_tensors {
    struct store_tensor *tensors; /* in the order of the files, and of the data in them */
    size_t count, room;
    struct store_tensor **by_name; /* sorted */
    struct store_source_file *files;
    size_t file_count, file_room;
};

/* paths: files; or folders, of which model.safetensors.index.json says the files or, without one,
 * every *.safetensors is taken, sorted by name. */
zero_status store_tensors_open(char *const *paths, size_t count, struct store_tensors *out,
                               struct zero_detail *out_detail);
void store_tensors_close(struct store_tensors *tensors);

const struct store_tensor *store_tensors_find(const struct store_tensors *tensors,
                                              const char *name); /* NULL: none */

/* Elements of a tensor, rounded to nearest where they are F64. */
zero_status store_tensors_read(const struct store_tensors *tensors,
                               const struct store_tensor *tensor, struct zero_range elements,
                               float *out, struct zero_detail *out_detail);

/* One file's header, for those who have only that: adds to the tensors. */
zero_status store_tensors_add(struct store_tensors *tensors, uint32_t file,
                              struct zero_detail *out_detail);

#endif
