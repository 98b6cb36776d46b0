"""The registry of checks, and what several rooms of checks share."""
