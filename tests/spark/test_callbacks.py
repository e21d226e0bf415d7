"""Which of a sink's callbacks Spark calls, in which process and in which order: what the sinks are built on.

If a release of Spark changes any of this, it is to be known here, and not by rows that are missing.
"""

import json
import os

from tests.spark.owned import Clicks


def register(spark, folder):
    """Make the format ``noting``, which writes down who calls what; its second batch cannot be committed."""
    path = str(folder / "notes")

    def make():
        from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

        def note(what, token, **more):
            import json
            import os

            with open(path, "a") as file:
                file.write(json.dumps({"what": what, "pid": os.getpid(), "token": token, **more}) + "\n")

        class Message(WriterCommitMessage):
            def __init__(self, token):
                self.token = token

        class Noting(DataSourceStreamArrowWriter):
            def __init__(self, token):
                self.token = token

            def write(self, iterator):
                from kolk.spark.identity import Place

                place = Place.here()
                rows = sum(batch.num_rows for batch in iterator)
                note("write", self.token, query=place.query, batch=place.batch, part=place.partition, rows=rows)
                return Message(self.token)

            def commit(self, messages, batchId):
                tokens = [each.token for each in messages]
                note("commit", self.token, batch=batchId, tokens=tokens)
                if batchId == 1:
                    raise RuntimeError("not committed")

            def abort(self, messages, batchId):
                note("abort", self.token, batch=batchId, tokens=[each.token for each in messages])

        class Source(DataSource):
            @classmethod
            def name(cls):
                return "noting"

            def streamWriter(self, schema, overwrite):
                import uuid

                token = uuid.uuid4().hex
                note("streamWriter", token, options=sorted(self.options))
                return Noting(token)

        return Source

    spark.dataSource.register(make())
    return lambda: [json.loads(line) for line in open(path).read().splitlines()]


def test_a_writer_is_made_for_the_tasks_of_each_batch_and_others_to_commit_and_to_abort_it(spark, tmp_path):
    notes = register(spark, tmp_path)
    clicks = Clicks(spark, tmp_path / "clicks")
    clicks.add(10)
    clicks.add(10)
    writer = clicks.stream().repartition(2).writeStream.format("noting").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.awaitTermination()
    except Exception as error:  # noqa: BLE001 - what Spark raises is what is asked for
        told = str(error)
    found = notes()

    assert "not committed" in told
    made = {each["token"]: each for each in found if each["what"] == "streamWriter"}
    for batch in (0, 1):
        tasks = [each for each in found if each["what"] == "write" and each["batch"] == batch]
        (commit,) = [each for each in found if each["what"] == "commit" and each["batch"] == batch]
        assert sorted(each["part"] for each in tasks) == [0, 1]
        assert {each["query"] for each in tasks} == {query.id}
        assert sum(each["rows"] for each in tasks) == 10
        # The object that the tasks have is made before them, on the driver, and is one for all of them ...
        (token,) = {each["token"] for each in tasks}
        assert found.index(made[token]) < min(map(found.index, tasks))
        assert made[token]["pid"] not in {each["pid"] for each in tasks} | {os.getpid()}
        # ... and the one that commits is another one, made after them; what it knows of them is in their messages.
        assert commit["token"] != token
        assert found.index(made[commit["token"]]) > max(map(found.index, tasks))
        assert commit["pid"] == made[commit["token"]]["pid"]
        assert commit["tokens"] == [token, token]
    # A commit that raised is followed by an abort, by yet another object, with all messages.
    (abort,) = [each for each in found if each["what"] == "abort"]
    assert abort["batch"] == 1
    assert len(abort["tokens"]) == 2
    assert abort["token"] not in {each["token"] for each in found if each["what"] in ("write", "commit")}
    assert "checkpointlocation" in made[abort["token"]]["options"]
