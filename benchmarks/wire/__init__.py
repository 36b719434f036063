"""Benchmarks over HTTP beside peers: servers on one core, the load generator on another.

`contenders` lists the servers, `process` runs one, `traffic` makes the requests, `conformance`
checks each server's responses before it is measured, `wrk` generates the load, and `attackers`
are hostile clients. What is not installed on this machine (wrk, nginx, the peers' virtual
environment) is skipped and reported.
"""
