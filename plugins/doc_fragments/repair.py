# Apache-2.0, see LICENSE
"""Documentation that modules share: the step of a repair."""

from __future__ import annotations


class ModuleDocFragment:
    """The option ``repair``."""

    DOCUMENTATION = r"""
options:
  repair:
    description:
      - The step of a repair, where a check that depends on it fails. V(contents) compares each file
        with what is recorded of it; V(reinstall) installs over it; V(recreate) moves it aside and
        installs as on a fresh host. Without it, sizes, times and modes are compared.
      - Single files and the linker's cache are written again from V(reinstall) on, even where
        nothing differs.
    type: str
    choices: [contents, reinstall, recreate]
"""
