"""Benchmarks that compare the service with its libraries and with its peers.

Run them as ``python -m benchmarks`` (Linux only). A benchmark is a coroutine function that takes
a `Plan` and returns figures; `suite` lists them all, by the name of their module. Each compares
two or more sides in interleaved rounds of one run, so that ratios hold on a busy machine. None of
them is a test.
"""
