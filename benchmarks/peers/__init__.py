"""The same API on other servers, in the usual style of each framework, with one process each.

Run one as ``python -m benchmarks.peers.NAME PORT FILE``. `contract` describes the file.
"""
