/* SPDX-License-Identifier: MIT */
/* This test fails: it proves that the runner notices. */
#include "tests/unit/check.h"

int main(void)
{
    CHECK(1 == 2);
    return check_done();
}
