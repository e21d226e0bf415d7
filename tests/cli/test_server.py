"""Serving, and the same commands against a server; tokens open it."""

import json
import signal

import pytest

import kolk
from kolk.server.tokens import Tokens


@pytest.fixture
def serving(folder):
    """Serve the folder: ``with serving() as server``."""
    return lambda: kolk.start(folder, config=kolk.EngineConfig(durability="process"))


def test_everything_works_on_a_server(ok, serving):
    with serving() as server:
        there = ["--url", server.url]
        ok("table", "create", "t", "--columns", "id int, x string", "-k", "id", "--buckets", "2", *there)

        ok("put", "t", "-i", "csv", *there, input="id,x\n1,a\n2,b\n")

        assert json.loads(ok("get", "t", "2", *there)) == {"id": 2, "x": "b"}
        assert len(ok("scan", "t", *there).splitlines()) == 2
        assert len(ok("tail", "t", *there).splitlines()) == 2
        status = json.loads(ok("status", *there))
        assert [one["table"] for one in status["tables"]] == ["t"]
        assert status["version"] == kolk.__version__
        assert "uptime" in ok("status", *there, "-f", "table")
        assert json.loads(ok("doctor", *there).splitlines()[-1])["state"] == "ok"
        ok("table", "truncate", "t", "--yes", *there)
        assert ok("scan", "t", *there) == ""


def test_a_put_to_a_server_that_fails_midway_knows_what_is_durable(run, ok, serving):
    rows = "id\n" + "".join(f"{'x' if n == 70 else n}\n" for n in range(100))
    with serving() as server:
        there = ["--url", server.url]
        ok("table", "create", "t", "--columns", "id int", "-k", "id", *there)

        done = run("put", "t", "-i", "csv", "--batch-rows", "3", *there, input=rows)

        assert done.exit_code == 1
        assert "stdin, row 71: id is a int, not 'x'" in done.stderr
        assert "69 rows are durable" in done.stderr
        assert "may be durable too" not in done.stderr
        assert len(ok("scan", "t", *there).splitlines()) == 69


def test_a_token_opens_what_it_allows_and_no_more(run, ok, folder, serving):
    secret = ok("token", "create", folder, "--name", "etl", "--allow", "web.*=read,create", "--ttl", "1d").strip()
    (folder.parent / "token").write_text(secret + "\n")

    with serving() as server:
        there = ["--url", server.url]
        ok("table", "create", "web.t", "--columns", "id int", "-k", "id", *there, "--token", secret)
        assert run("scan", "web.t", *there).exit_code == 4
        assert run("scan", "web.t", *there, "--token", "kolk_wrong").exit_code == 4
        ok("scan", "web.t", *there, "--token", secret)
        ok("scan", "web.t", *there, "--token-file", folder.parent / "token")
        ok("scan", "web.t", *there, env={"KOLK_TOKEN": secret})
        denied = run("table", "drop", "web.t", "--yes", *there, "--token", secret)

    assert denied.exit_code == 4
    assert denied.stderr.startswith("error: ")


def test_a_doctor_without_a_token_is_told_how_to_give_one(run, ok, folder, serving):
    ok("token", "create", folder, "--name", "etl", "--allow", "*=all")

    with serving() as server:
        done = run("doctor", "--url", server.url)

    found = [json.loads(line) for line in done.stdout.splitlines()]
    server_check = next(one for one in found if one["check"] == "server")
    assert done.exit_code == 1
    assert "--token-file FILE" in server_check["found"]
    assert server_check["next_step"] == "give --token-file FILE, or set KOLK_TOKEN"
    assert "database" not in [one["check"] for one in found]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["serve", "FOLDER", "--listen", "9123"], "write HOST:PORT, such as 127.0.0.1:9123"),
        (["serve", "FOLDER", "--listen", "localhost:http"], "write HOST:PORT"),
        (["serve", "FOLDER", "--set", "bad"], "write SECTION.NAME=VALUE"),
        (["table", "list", "--url", "http://127.0.0.1:9123"], "an address is kolk://host:port"),
        (["put", "t", "rows.csv", "--mode", "accumlate"], "it is one of accumulate, overwrite, merge_state"),
    ],
)
def test_what_is_written_wrong_on_the_command_line_is_a_usage_error(run, folder, arguments, reason):
    done = run(*(folder if one == "FOLDER" else one for one in arguments))

    assert done.exit_code == 2
    assert reason in done.stderr
    assert not folder.exists()


def test_a_server_that_does_not_answer_is_unavailable(run):
    assert run("table", "list", "--url", "kolk://127.0.0.1:1").exit_code == 5


def test_the_secret_of_a_token_is_alone_on_stdout(run, folder):
    done = run("token", "create", folder, "--name", "etl", "--allow", "*=all")

    assert done.stdout.count("\n") == 1
    assert Tokens(folder / "tokens.json").authenticate(done.stdout.strip()).name == "etl"
    assert "not shown again" in done.stderr
    assert done.stdout.strip() not in done.stderr


def test_tokens_are_listed_without_secrets_and_revoked(run, ok, folder):
    secret = ok("token", "create", folder, "--name", "etl", "--allow", "web.*=read,write", "--allow", "t=read").strip()

    (listed,) = map(json.loads, ok("token", "list", folder).splitlines())
    ok("token", "revoke", folder, listed["id"])

    assert listed["name"] == "etl"
    assert listed["allow"] == ["web.*=read,write", "t=read"]
    assert secret not in ok("token", "list", folder)
    assert json.loads(ok("token", "list", folder))["state"] == "revoked"
    assert run("token", "revoke", folder, "0" * 16).exit_code == 3
    assert run("token", "list", folder / "nowhere").exit_code == 3


def test_a_list_says_nothing_where_there_is_nothing_to_say(ok, folder):
    ok("token", "create", folder, "--name", "etl", "--allow", "*=all")

    shown = ok("token", "list", folder, "-f", "table")

    assert " s ago" in shown
    assert "null" not in shown


@pytest.mark.parametrize(
    "options", [["--allow", "web"], ["--allow", "*=everything"], ["--allow", "*=all", "--ttl", "x"]]
)
def test_a_token_that_makes_no_sense_is_refused(run, folder, options):
    assert run("token", "create", folder, "--name", "etl", *options).exit_code in (1, 2)
    assert run("token", "create", folder, *options).exit_code == 2


def test_serve_serves_until_it_is_told_to_stop(start, folder):
    process = start("serve", folder, "--listen", "127.0.0.1:0", "--http-port", "-1", "--durability", "process",
                    "--set", "server.drain_seconds=1")  # fmt: skip
    started = json.loads(process.stderr.readline())

    with kolk.connect(started["url"]) as db:
        db.create_table("t", kolk.Schema([kolk.Column("id", "int")], "id"))
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)

    assert started["durability"] == "process"
    assert process.returncode == 0


def test_serve_refuses_settings_that_nobody_knows(run, folder):
    done = run("serve", folder, "--set", "server.prot=1")

    assert done.exit_code == 2
    assert "did you mean port?" in done.stderr
    assert not folder.exists()
