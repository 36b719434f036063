"""How requests are sent: connections, TLS, endpoints, retries and credentials."""
