"""The error of a measurement: a message for a person."""


class MeasureError(Exception):
    """A wheel cannot be measured: a failure of the index, the connection or the file."""
