"""The errors of the catalog's tools: each is a message for a person."""

from gpufleet.errors import ConfigurationError
from gpufleet.on_host.addresses import public_addresses


class MeasureError(Exception):
    """A wheel, manifest or index cannot be read; the message repeats no secret of an address."""

    def __init__(self, message: str) -> None:
        super().__init__(public_addresses(message))


class ContradictionError(ConfigurationError):
    """Published data that contradict the catalog's figures, or lack the data of a row."""


class UnansweredError(MeasureError):
    """An index did not answer."""
