"""Rate limits per key, and per client address for failed authentication.

The algorithm is GCRA (generic cell rate algorithm): one number for each limit, the *theoretical
arrival time* (TAT), in seconds of a monotonic clock. An event moves it forward by one interval,
and is allowed while it is less than a whole burst ahead of the clock. So a limit allows its whole
count at once, and then one event for each interval. As a float it is exact to 15 ns while the
machine has run for less than four years.

The library `limits` (5.8, in memory) takes 7 to 16 times as long for one decision, as long as a
whole response of the fast path (docs/reference/limits.md has the figures).

The numbers are in shared memory, so processes forked later apply one limit together. They change it
without a lock: simultaneous events of two processes may be counted as one.
"""
