"""Benchmarks of the service, compared with its libraries and its peers.

Run them as ``python -m benchmarks`` (Linux only). A benchmark is a coroutine function with a `Plan`
as argument and figures as result. `suite` lists them all by module name. Each compares two or more
sides in interleaved rounds of one run, so ratios hold on a busy machine. None of them is a test.
"""
