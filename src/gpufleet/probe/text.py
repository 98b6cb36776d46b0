"""Small helpers for the text that commands and files give."""
import re


def last_lines(text, limit):
    """The last lines of a command's output: whole lines, at most `limit` characters."""
    text = text.strip()
    if len(text) <= limit:
        return text
    _, _, rest = text[-limit:].partition("\n")
    return rest or text[-limit:]


def first_match(pattern, text):
    match = re.search(pattern, text or "", re.MULTILINE)
    return match.group(1) if match else None


def natural(text):
    """A sort key by which 10 follows 9."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", text)]
