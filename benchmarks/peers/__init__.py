"""The same API on other servers, each in the usual style of its framework, one process each.

Run one as ``python -m benchmarks.peers.NAME PORT FILE``; `contract` describes the file.
"""
