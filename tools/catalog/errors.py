"""The errors of the catalog's tools: each is a message for a person."""

from gpufleet.errors import ConfigurationError
from gpufleet.on_host.addresses import public_addresses


class MeasureError(Exception):
    """A wheel, manifest or index cannot be read; the message repeats no secret of an address."""

    def __init__(self, message: str) -> None:
        super().__init__(public_addresses(message))


class ContradictionError(ConfigurationError):
    """What is published contradicts a figure of the catalog, or lacks what a row needs."""


class UnansweredError(MeasureError):
    """An index did not answer."""
