"""A pack for a machine with a GPU that is lent for minutes and reaches no network."""
