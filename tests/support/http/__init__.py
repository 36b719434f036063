"""Clients, servers and the bytes between them."""
