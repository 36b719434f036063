"""The service as a command, and commands for a service that runs."""
