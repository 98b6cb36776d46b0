"""What is declared, planned, compared and checked, by component."""
