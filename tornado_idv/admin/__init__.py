"""The operator's listener: health, metrics, status, cache purge and explain.

It is separate from the public API. Its handlers are of `tornado.web`, on `tornado_idv.http`.
"""
