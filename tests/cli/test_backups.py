"""Backups on the command line: made of a folder or a server, and restored."""

import json

import kolk
from kolk.server.run import Server


def rows(text):
    return sorted(json.loads(line)["page"] for line in text.splitlines())


def test_a_folder_is_backed_up_and_restored(run, ok, pages, folder, tmp_path):
    made = run("backup", folder, tmp_path / "b")
    ok("put", pages, "-i", "csv", input="page,pv,title\n/new,1,\n")
    restored = run("restore", tmp_path / "b", tmp_path / "restored")

    assert (made.exit_code, made.stdout) == (0, "")
    assert f"{tmp_path / 'b'} is a backup of 1 table, " in made.stderr
    assert (restored.exit_code, restored.stdout) == (0, "")
    assert f"{tmp_path / 'restored'} is a database of 1 table, " in restored.stderr
    assert rows(ok("scan", pages, "--url", tmp_path / "restored")) == ["/", "/about"]
    assert rows(ok("scan", pages)) == ["/", "/about", "/new"]


def test_a_server_is_backed_up_under_a_name(run, ok, pages, folder, tmp_path):
    config = kolk.ServerConfig(port=0, http_port=-1, drain_seconds=1, backup_folder=str(tmp_path / "backups"))
    with Server.open(folder, config) as server:
        made = run("backup", server.url, "nightly", "--quiet")
        again = run("backup", server.url, "nightly")
        path = run("backup", server.url, "../x")
    ok("restore", tmp_path / "backups" / "nightly", tmp_path / "restored")

    assert (made.exit_code, made.stderr) == (0, "")
    assert (again.exit_code, "holds a backup already" in again.stderr) == (1, True)
    assert (path.exit_code, "not a backup name" in path.stderr) == (1, True)
    assert rows(ok("scan", pages, "--url", tmp_path / "restored")) == ["/", "/about"]


def test_what_cannot_be_backed_up_or_restored_says_why(run, ok, pages, folder, tmp_path):
    nothing = run("backup", tmp_path / "nothing", tmp_path / "b")
    ok("backup", folder, tmp_path / "b")
    taken = run("restore", tmp_path / "b", folder)
    none = run("restore", folder, tmp_path / "restored")
    (tmp_path / "b" / "meta.sqlite").write_bytes(b"damaged")
    damaged = run("restore", tmp_path / "b", tmp_path / "restored")

    assert (nothing.exit_code, "there is no database" in nothing.stderr) == (3, True)
    assert (taken.exit_code, "holds a database" in taken.stderr) == (1, True)
    assert (none.exit_code, "no backup that is whole" in none.stderr) == (3, True)
    assert (damaged.exit_code, "meta.sqlite is missing or is not what was backed up" in damaged.stderr) == (1, True)
    assert not (tmp_path / "restored").exists()


def test_a_person_sees_a_bar(on_terminal, pages, folder, tmp_path):
    code, seen = on_terminal("backup", folder, tmp_path / "b")

    assert code == 0
    assert "backup" in seen
    assert "is a backup of 1 table" in seen
