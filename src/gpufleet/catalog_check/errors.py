"""What measuring raises, and nothing else: a message for a person."""


class MeasureError(Exception):
    """Something that keeps a wheel from being measured: the index, the connection, the file."""
