"""Write the documents as the code makes them now, and print what changed; or show kept ones."""

from __future__ import annotations

import argparse
import json

from tests.golden.areas import goldens
from tests.golden.compare import differences
from tests.golden.documents import read, read_area, write, written


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument(
        "--show", choices=written(), metavar="AREA", help="Print the file of an area"
    )
    parser.add_argument("name", nargs="?", help="Print this document alone, whole")
    options = parser.parse_args()
    if options.show:
        shown = read_area(options.show)
        if options.name and options.name not in shown:
            parser.error(f"{options.show} has no document {options.name!r}")
        if options.name:
            shown = read()[f"{options.show}: {options.name}"]
        print(json.dumps(shown, indent=1, sort_keys=True, ensure_ascii=False))
        return
    before, found = read(), goldens()
    for line in differences(before, {key: golden.values for key, golden in found.items()}):
        print(line)
    changed = write(found)
    print(f"{len(found)} documents; files written: {', '.join(changed) or 'none'}")


if __name__ == "__main__":
    main()
