"""The parts that components share."""
