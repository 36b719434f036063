"""What is sent to an upstream: request templates, their encoding and URLs."""
