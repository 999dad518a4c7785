/* SPDX-License-Identifier: MIT */
/* check.h: the assertions of the unit tests. A failed CHECK prints where and goes on; check_done()
 * is the exit status. */
#ifndef TESTS_UNIT_CHECK_H
#define TESTS_UNIT_CHECK_H

#include <stdio.h>
#include <string.h>

static int check_failures;

#define CHECK(condition)                    \
    ((condition) ? (void)0                  \
                 : (void)(check_failures++, \
                          fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition)))

/* Fails, printing the text, unless text contains part. */
#define CHECK_CONTAINS(text, part)                                                            \
    (strstr((text), (part))                                                                   \
         ? (void)0                                                                            \
         : (void)(check_failures++, fprintf(stderr, "%s:%d: \"%s\" lacks \"%s\"\n", __FILE__, \
                                            __LINE__, (text), (part))))

static inline int check_done(void)
{
    if (check_failures)
        fprintf(stderr, "%d checks failed\n", check_failures);
    return check_failures != 0;
}

#endif
