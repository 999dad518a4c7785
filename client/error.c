/* SPDX-License-Identifier: MIT */
/* The text of a thread's last failure, kept with the client it was on. */
#include <stdarg.h>
#include <stdio.h>

#include "client/client.h"

static _Thread_local struct {
    const zero_client *client;
    char text[ZERO_DETAIL_BYTES];
} last;

zero_status client_fail(const zero_client *client, zero_code code, const char *doing,
                        const char *format, ...)
{
    va_list args;

    last.client = client;
    va_start(args, format);
    vsnprintf(last.text, sizeof last.text, format, args);
    va_end(args);
    return (zero_status){ code, doing };
}

zero_status client_interrupted(const zero_client *client)
{
    if (client->interrupted == NULL || !client->interrupted(client->context))
        return zero_success();
    return client_fail(client, ZERO_INTERRUPTED, "wait", "the wait was interrupted");
}

zero_status client_need(const zero_client *client, const void *pointer, const char *name)
{
    if (pointer != NULL)
        return zero_success();
    return client_fail(client, ZERO_INVALID_ARGUMENT, "check arguments", "%s is NULL", name);
}

const char *zero_error_text(const zero_client *client)
{
    return client == last.client ? last.text : "";
}
