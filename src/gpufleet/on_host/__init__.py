"""What the control machine and hosts decide alike. Standard library, Python 3.6 and later.

The collection's modules have these files by links in `plugins/module_utils`.
"""
