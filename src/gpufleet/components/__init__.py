"""The components: their declaration, plan, comparison with a host, and checks."""
