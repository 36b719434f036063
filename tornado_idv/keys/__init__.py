"""Bearer keys: the format of tokens, the records of keys, authentication and the key store."""
