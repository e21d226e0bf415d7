"""Write the table of options of docs/spark.md from src/kolk/spark/options.py.

python scripts/spark_options.py            write it into the page
python scripts/spark_options.py --check    end with 1 if the page does not have what would be written
"""

import sys
from pathlib import Path

from kolk.spark.options import OPTIONS

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/spark.md"
START = "<!-- options: made by `python scripts/spark_options.py`; do not edit -->\n"
END = "<!-- end of options -->"


def table() -> str:
    rows = [[f"`{each.name}`", each.used_by, each.default, each.text.replace("|", "&#124;")] for each in OPTIONS]
    head = ["option", "used by", "if you do not say", "what it is for"]
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join(["", lines[0], f"|{'---|' * len(head)}", *lines[1:], ""])


def page() -> str:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    return f"{before}{START}{table()}\n{END}{rest.partition(END)[2]}"


def main() -> int:
    wanted = page()
    if "--check" in sys.argv[1:]:
        if PAGE.read_text(encoding="utf-8") == wanted:
            return 0
        print(f"{PAGE.relative_to(ROOT)} is not current; run: python scripts/spark_options.py")
        return 1
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
