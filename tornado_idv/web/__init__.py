"""The HTTP API: handlers parse a request, query the directory, and send the response."""
