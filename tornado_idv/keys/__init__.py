"""Bearer keys: the format of tokens, the scopes of a key, and which keys are valid now."""
