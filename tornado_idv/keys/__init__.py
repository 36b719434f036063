"""Bearer keys: the form of a token, what a key may do, and which keys are good now."""
