"""The service over HTTP beside its peers: one core serves, another one asks.

`servers` names the sides, `server` runs one as a process, `traffic` is what they are asked,
`agreement` is what they must answer before they are measured, `wrk` asks, and `attackers` do
harm. What cannot be had on this machine (wrk, nginx, the peers' virtual environment) is left
out, and told.
"""
