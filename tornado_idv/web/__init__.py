"""The HTTP side: handlers that read a request, ask the directory and write bytes."""
