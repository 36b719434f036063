"""For those who write a plugin: mapping of records, masking of secrets, tests."""
