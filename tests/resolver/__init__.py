"""Specifications of compat/: facts, resolver, changes and command."""
