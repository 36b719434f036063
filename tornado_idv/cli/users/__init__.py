"""The commands for users."""
