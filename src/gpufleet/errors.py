"""The one kind of error that stops a run before it begins: exit status 4."""

from __future__ import annotations


class ConfigurationError(Exception):
    """What is wrong with the question, where it stands, and what to do."""

    def __init__(self, message: str, where: str = "", remedy: str = "") -> None:
        super().__init__(message)
        self.message, self.where, self.remedy = message, where, remedy

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        return f"{place}{self.message}" + (f" {self.remedy}" if self.remedy else "")
