"""Interfaces that plugins implement: backends, commands, hooks, shared caches, user stores."""
