"""Turns `config.yaml` into frozen `Settings`, or reports every problem with its position."""
