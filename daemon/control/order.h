/* SPDX-License-Identifier: MIT */
/* order.h: tells ThreadSanitizer that gRPC's queue orders what happens before a batch is started
 * with what happens after its tag came back; gRPC is not instrumented, so it cannot see that.
 *
 * Thread  any.
 * Uses    nothing.   Used by control.
 */
#ifndef DAEMON_CONTROL_ORDER_H
#define DAEMON_CONTROL_ORDER_H

#ifdef ZERO_TSAN
#include <sanitizer/tsan_interface.h>
#define order_release(tag) __tsan_release(tag)
#define order_acquire(tag) __tsan_acquire(tag)
#else
#define order_release(tag) ((void)(tag))
#define order_acquire(tag) ((void)(tag))
#endif

#endif
