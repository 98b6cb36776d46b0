"""A host's text does not move the cursor of a person who runs Ansible."""

from __future__ import annotations

from ansible.utils.display import Display

from plugins.callback.printable import CallbackModule


def test_escape_sequences_of_a_host_are_not_printed(capsys: object) -> None:
    display = Display()
    before = vars(display).get("display")
    try:
        CallbackModule()
        CallbackModule()
        display.display("gpu01: LD_LIBRARY_PATH=/stubs\x1b]0;x\x07 \x9b2J\u202e\nnext")
    finally:
        if before is None:
            vars(display).pop("display", None)
    shown = capsys.readouterr().out  # type: ignore[attr-defined]
    assert "LD_LIBRARY_PATH=/stubs\ufffd]0;x\ufffd \ufffd2J\ufffd\nnext" in shown
