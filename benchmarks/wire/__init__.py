"""Benchmarks over HTTP with peers: servers on one core, the load generator on another.

`contenders` lists the servers, `process` runs one, and `traffic` makes the requests. `conformance`
checks the responses of each server before its measurement. `wrk` generates the load, and
`attackers` are hostile clients. Missing programs (wrk, nginx, the virtual environment of the peers)
are skipped and reported.
"""
