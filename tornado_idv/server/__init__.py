"""Composition and process life: the service from its settings, signals, logs, shutdown."""
