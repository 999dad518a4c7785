#!/bin/sh
# SPDX-License-Identifier: MIT
# Fails when libzeroclient.so exports a name that does not begin with zero_. $1: the build folder.
library=$1/client/libzeroclient.so
names=$(nm -D --defined-only "$library" | awk '{ print $NF }') || exit 1
[ -n "$names" ] || { echo "$library exports nothing" >&2; exit 1; }
foreign=$(echo "$names" | grep -v '^zero_')
[ -z "$foreign" ] || { echo "$library also exports:" "$foreign" >&2; exit 1; }
