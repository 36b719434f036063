"""Counters of the service. The event loop updates them, and the metrics endpoint reads them."""
