"""Write docs/configuration.md from src/kolk/config.py: every setting with its type, default and reason.

    python scripts/configuration.py            write the page
    python scripts/configuration.py --check    end with 1 if the page is not what would be written

The source is parsed and not imported, because the reasons are the texts under the fields, which Python throws away.
"""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src/kolk/config.py"
PAGE = ROOT / "docs/configuration.md"
SECTIONS = {"ServerConfig": "server", "EngineConfig": "engine"}

HEAD = ("| setting | type | default | why |", "|---|---|---|---|")
WORDS = {"str": "text", "str | None": "text", "Durability": "text", "tuple[str, ...]": "list of text"}

TEXT = """# Configuration

Made by `python scripts/configuration.py` from `src/kolk/config.py`; do not edit.

`kolk serve FOLDER --config kolk.toml` reads a file of two sections. Every name may also be given as
`--set SECTION.NAME=VALUE`, and some have a flag of their own; flags beat the file. A name that is not in these tables
is an error. In Python the same names are the arguments of `kolk.EngineConfig` and `kolk.ServerConfig`.

```toml
[server]
host = "0.0.0.0"
tls_cert = "cert.pem"
tls_key = "key.pem"

[engine]
durability = "machine"
```
{sections}"""


def page() -> str:
    tree = ast.parse(SOURCE.read_text(encoding="utf-8"))
    constants = dict(constant for node in tree.body if (constant := named_number(node)))
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    sections = [section(classes[name], title, constants) for name, title in SECTIONS.items()]
    return TEXT.format(sections="".join(sections))


def section(node: ast.ClassDef, title: str, constants: dict[str, int]) -> str:
    lines = [f"\n## [{title}]\n", ast.get_docstring(node) or "", "", *HEAD]
    for field, below in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign) and field.value is not None:
            kind = ast.unparse(field.annotation)
            default = shown(field.value, constants)
            reason = " ".join(text_of(below).replace("``", "`").split())
            lines.append(f"| `{ast.unparse(field.target)}` | {WORDS.get(kind, kind)} | {default} | {reason} |")
    return "\n".join([*lines, ""])


def text_of(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return node.value.value
    raise SystemExit(f"{SOURCE.name}: a setting has no text under it that says why one would change it")


def shown(value: ast.expr, constants: dict[str, int]) -> str:
    """A default as it is written in TOML; products of MIB in words."""
    text = ast.unparse(value)
    if text in ("None", "()"):
        return "none"
    if text.startswith("Durability."):
        return f"`{text.removeprefix('Durability.').lower()}`"
    found = eval(compile(ast.Expression(value), SOURCE.name, "eval"), {"__builtins__": {}}, dict(constants))
    if isinstance(found, bool):
        return str(found).lower()
    if isinstance(found, str):
        return f"`{found}`"
    if "MIB" in text:
        return f"{found} ({found // constants['MIB']} MiB)"
    return str(found)


def named_number(node: ast.stmt) -> tuple[str, int] | None:
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "MIB":
        return "MIB", eval(ast.unparse(node.value), {"__builtins__": {}})
    return None


def main() -> int:
    wanted = page()
    if "--check" in sys.argv[1:]:
        if PAGE.exists() and PAGE.read_text(encoding="utf-8") == wanted:
            return 0
        print(f"{PAGE.relative_to(ROOT)} is not current; run: python scripts/configuration.py")
        return 1
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
