"""The commands for API keys."""
