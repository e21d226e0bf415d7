"""Write the tables of docs/aggregation.md from src/kolk/model/functions.py: every aggregate function, whole.

python scripts/functions.py            write them into the page
python scripts/functions.py --check    end with 1 if the page does not have what would be written
"""

import sys
from pathlib import Path

from kolk.model.function_table import Entry, entries, parameter_text, types_text

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/aggregation.md"
START = "<!-- functions: made by `python scripts/functions.py`; do not edit -->\n"
END = "<!-- end of functions -->"


def tables() -> str:
    found = [entry for entry in entries() if entry.version is None]
    what = [
        [f"`{each.name}`", ", ".join(f"`{alias}`" for alias in each.aliases), each.summary, types_text(each.types),
         each.input]
        for each in found
    ]  # fmt: skip
    promises = [
        [f"`{each.name}`", each.nulls, each.retract, "yes" if each.idempotent else "no", each.order, each.size]
        for each in found
    ]
    return "\n".join(
        [
            table(["function", "also", "what it keeps", "column", "a put gives"], what),
            table(["function", "nulls", "take back", "idempotent", "order", "size of the state"], promises),
            table(
                ["function", "parameters"], [[f"`{each.name}`", parameters(each)] for each in found if each.parameters]
            ),
        ]
    )


def parameters(entry: Entry) -> str:
    return "<br>".join(
        f"`{one.name}`: {parameter_text(one).partition(': ')[2].replace('|', '&#124;')}" for one in entry.parameters
    )


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join(["", lines[0], f"|{'---|' * len(head)}", *lines[1:], ""])


def page() -> str:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    return f"{before}{START}{tables()}\n{END}{rest.partition(END)[2]}"


def main() -> int:
    wanted = page()
    if "--check" in sys.argv[1:]:
        if PAGE.read_text(encoding="utf-8") == wanted:
            return 0
        print(f"{PAGE.relative_to(ROOT)} is not current; run: python scripts/functions.py")
        return 1
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
