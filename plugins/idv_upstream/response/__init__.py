"""What an upstream response means: its status, its body and the mapping to a user."""
