"""Interfaces for plugins: backends, commands, hooks, shared caches, user stores."""
