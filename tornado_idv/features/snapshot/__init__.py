"""The answers of the cache in a file, for the next start."""
