"""The status page of the admin listener, with the activity of the last 15 minutes."""
