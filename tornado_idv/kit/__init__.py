"""Tools for authors of plugins, and modules that several features share."""
