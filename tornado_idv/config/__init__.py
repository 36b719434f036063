"""`config.yaml` turned into frozen `Settings`, with every problem told at its place."""
