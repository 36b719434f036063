"""The service and other programs as processes."""
