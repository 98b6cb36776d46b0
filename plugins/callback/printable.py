# Apache-2.0, see LICENSE
"""Replace the control characters in what Ansible prints: hosts send some of it."""

from __future__ import annotations

DOCUMENTATION = r"""
name: printable
type: aggregate
short_description: Keeps control characters of hosts from the terminal
description:
  - Results, differences of files and warnings contain text of hosts. A terminal obeys escape
    sequences in it. This callback replaces them in everything that Ansible prints, by the same
    function that reports use.
  - It does nothing where the Python package gpufleet is not installed.
requirements: [enabled in the configuration]
"""

from ansible.plugins.callback import CallbackBase

try:
    from gpufleet.documents.text import printable
except ImportError:
    printable = None


class CallbackModule(CallbackBase):
    """Wraps the display, through which callbacks, warnings and errors print; colours come after."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "printable"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self):
        super().__init__()
        shown = self._display.display
        if printable is None or getattr(shown, "printable", False):
            return

        def display(msg, *args, **kwargs):
            shown(printable(msg) if isinstance(msg, str) else msg, *args, **kwargs)

        display.printable = True
        self._display.display = display
