"""The HTTP side: handlers read a request, query the directory and write the response."""
