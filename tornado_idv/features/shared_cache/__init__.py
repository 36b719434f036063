"""The cache of answers that processes share."""
