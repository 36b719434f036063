"""Transport of requests: connections, TLS, endpoints, retries and credentials."""
