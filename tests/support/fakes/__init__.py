"""Stand-ins for what a test controls: time, backends and stores."""
