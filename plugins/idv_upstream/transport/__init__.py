"""The transport of requests to an upstream: connections, TLS, retries and credentials."""
