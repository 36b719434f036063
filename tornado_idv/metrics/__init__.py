"""Counting: plain numbers, added up on the event loop and read when metrics are rendered."""
