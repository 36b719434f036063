"""Rate limits per key, and per client address for failed authentication.

The algorithm is GCRA (generic cell rate algorithm): one number for each limit, the *theoretical
arrival time* (TAT), in nanoseconds of a monotonic clock. An event moves it forward by one interval,
and is allowed while it is less than a whole burst ahead of the clock. So a limit allows its whole
count at once, and then one event for each interval.

The library `limits` (5.8, in memory) takes about ten times as long for one decision: its fixed
window 10 times and its sliding window 30 times that of `KeyLimits.acquire`, which takes 0.25 µs
(CPython 3.11), where a response of the packet cache takes 9 µs.

The numbers are in shared memory, so processes forked later apply one limit together. They change it
without a lock: simultaneous events of two processes may be counted as one.
"""
