"""The lab's error: a message and a remedy."""


class LabError(Exception):
    """A failure of the lab, with a remedy for a person."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
