"""What the lab raises, and nothing else: a message for a person, and what that person can do."""


class LabError(Exception):
    """Something the lab cannot get past by itself."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
