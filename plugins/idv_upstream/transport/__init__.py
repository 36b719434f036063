"""Transport of requests: connections, TLS, retries and credentials."""
