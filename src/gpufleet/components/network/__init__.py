"""Checks of network ports: whether they carry data, their counters, their settings."""
