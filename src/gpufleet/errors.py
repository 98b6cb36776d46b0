"""The error that stops a run before it starts: exit status 4."""

from __future__ import annotations


class ConfigurationError(Exception):
    """What is wrong with the configuration, where it is, and how to fix it."""

    def __init__(self, message: str, where: str = "", remedy: str = "") -> None:
        super().__init__(message)
        self.message, self.where, self.remedy = message, where, remedy

    def __str__(self) -> str:
        prefix = f"{self.where}: " if self.where else ""
        return f"{prefix}{self.message}" + (f" {self.remedy}" if self.remedy else "")
