"""Sockets, signals and limits: how the application is put on the network and taken off."""
