"""The commands of this plugin: ``tornado-idv upstream``."""
