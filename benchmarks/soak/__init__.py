"""A run of the service for minutes at half of its capacity, with reloads and purges."""
