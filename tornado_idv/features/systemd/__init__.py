"""Notification of systemd, and its watchdog."""
