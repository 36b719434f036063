"""The same contract in other servers, each in its usual style; one process on one core.

Each is run as ``python -m benchmarks.peers.NAME PORT FILE``; `contract` says what is in the file.
"""
