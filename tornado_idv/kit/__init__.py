"""Tools for authors of plugins: mapping of records, masking of secrets, tests."""
