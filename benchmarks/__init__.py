"""Measures the service as ratios, each between two sides that take turns in one run.

Run it as ``python -m benchmarks`` (on Linux). A benchmark is a coroutine function from `Plan`
to figures; `suite` names them all. None of them is a test: a busy machine is no failure.
"""
