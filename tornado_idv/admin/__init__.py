"""The operator's listener: health, metrics, status, cache purge and explain.

It is separate from the public API. It has handlers of `tornado.web`, served by `tornado_idv.http`.
"""
