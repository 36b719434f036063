"""Processes: the supervisor, its workers and their manager."""
