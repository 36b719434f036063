"""Processes: the supervisor, its workers and the admin process."""
