"""The frameworks' environments, and what they compute."""
