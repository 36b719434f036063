"""The operator's listener: health, metrics, status, cache purge and explain.

Plain `tornado.web` handlers on `tornado_idv.http`, apart from the public API.
"""
