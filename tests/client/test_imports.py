"""What a client must not need."""

import subprocess
import sys

import kolk

SCRIPT = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("rocksdict", "pyspark", "prometheus_client"):
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import asyncio, kolk
schema = kolk.Schema([kolk.Column("id", "int"), kolk.Column("v", "string")], primary_key=["id"])
with kolk.connect(sys.argv[1]) as db:
    table = db.create_table("t", schema, buckets=2)
    table.put([{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])
    assert table.get_one(id=1) == {"id": 1, "v": "a"}
    assert table.scan().to_arrow().num_rows == 2
    assert sum(batch.num_rows for batch in table.changelog()) == 2

async def main():
    async with await kolk.aio.connect(sys.argv[1]) as db:
        assert await (await db.table("t")).get_one(id=2) == {"id": 2, "v": "b"}

asyncio.run(main())
own = ("kolk.storage", "kolk.tablet", "kolk.engine", "kolk.server")
print(sorted(name for name in sys.modules if name.startswith(own)))
"""


def test_the_client_works_where_rocksdict_is_not_installed(tmp_path):
    with kolk.start(tmp_path / "data") as server:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, server.url], capture_output=True, text=True, timeout=60, check=False
        )

    assert done.stderr == ""
    assert done.stdout.strip() == "[]"
