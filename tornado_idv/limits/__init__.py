"""Rate limits per key, and per client address for failed authentication.

The algorithm is GCRA (generic cell rate algorithm). It stores one number for each limit, the
*theoretical arrival time* (TAT), in seconds of a monotonic clock. Each event moves the TAT forward
by one interval. A limit of 100 events allows an event while the TAT is at most 99 intervals ahead
of the clock. So it allows a burst of 100 events, and then one event per interval. As a float, the
TAT is exact to 15 ns for the first four years of uptime.

The library `limits` (5.8, in memory) takes several times as long for one decision.

The TATs are in shared memory, so processes forked later share their limits. They are changed
without a lock: simultaneous events of two processes may count as one event.
"""
