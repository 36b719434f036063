"""The command to serve, and commands for the running service."""
