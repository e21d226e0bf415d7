"""What a client must not need."""

import subprocess
import sys

SCRIPT = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("rocksdict", "pyspark"):
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import kolk
kolk.Schema([kolk.Column("id", "int")], primary_key=["id"])
import kolk.client.database, kolk.client.table, kolk.client.rows
print(sorted(name for name in sys.modules if name.startswith(("kolk.storage", "kolk.tablet", "kolk.engine"))))
"""


def test_the_client_works_where_rocksdict_is_not_installed():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.strip() == "[]"
