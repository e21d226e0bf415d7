"""Who is let in, to what, and that no secret is ever told."""

import io
import json
import logging
import ssl
import urllib.error
import urllib.request
from pathlib import Path

import pyarrow as pa
import pytest
import trustme

import kolk
from kolk.config import ServerConfig
from kolk.errors import InvalidArgument, PermissionDenied, TableNotFound, TimedOut, Unauthenticated, Unreachable
from kolk.model.grant import Grant
from kolk.runtime.clock import SystemClock
from kolk.runtime.rng import Rng
from kolk.server.events import Events, log_to
from kolk.server.tokens import Tokens


@pytest.fixture
def tokens(tmp_path):
    return Tokens(tmp_path / "data" / "tokens.json", SystemClock(), Rng())


def secret(tokens, *grants, name="etl"):
    return tokens.create(name, [Grant.parse(text) for text in grants])[1]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """An authority, a server certificate and a client certificate, as files."""
    folder, authority = tmp_path_factory.mktemp("certificates"), trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    for name, certificate in (("server", authority.issue_cert("127.0.0.1")), ("client", authority.issue_cert("me"))):
        certificate.private_key_pem.write_to_path(folder / f"{name}.key")
        for blob in certificate.cert_chain_pems:
            blob.write_to_path(folder / f"{name}.pem", append=True)
    return folder


def files(folder: Path, **names):
    return {setting: str(folder / name) for setting, name in names.items()}


def test_without_tokens_this_machine_may_do_everything(serve, connect, schema):
    connect(serve()).create_table("t", schema).put([{"id": 1, "v": "a"}])


def test_as_soon_as_there_is_a_token_one_is_wanted(serve, connect, schema, tokens):
    server = serve()
    open_db = connect(server)
    open_db.create_table("t", schema)
    token = secret(tokens, "*=all")

    server._access._tokens._checked = float("-inf")
    with pytest.raises(Unauthenticated, match="wants a token"):
        connect(server)
    with pytest.raises(Unauthenticated):
        open_db.table("t")
    with pytest.raises(Unauthenticated):
        connect(server, token="kolk_" + "0" * 16 + "_" + "0" * 64)
    with pytest.raises(Unauthenticated):
        connect(server, token="nonsense")
    assert connect(server, token=token).table("t").name == "t"


def test_a_follower_needs_no_more_than_read_and_shows_to_those_who_see_its_table(serve, connect, schema, tokens):
    server = serve()
    reads, writes, other = (secret(tokens, grant) for grant in ("a.*=read", "a.*=write", "b.*=all"))
    all_db = connect(server, token=secret(tokens, "*=all"))
    for name in ("a.t", "b.t"):
        all_db.create_table(name, schema).put([{"id": 1, "v": "a"}])
        all_db.table(name).changelog(follower="job")

    reader, writer, stranger = (connect(server, token=token) for token in (reads, writes, other))

    assert [follower.table for follower in all_db.followers()] == ["a.t", "b.t"]
    assert [follower.table for follower in reader.followers()] == ["a.t"]
    assert [follower.table for follower in stranger.followers()] == ["b.t"]
    with reader.table("a.t").changelog(follower="mine") as changes:
        assert len(list(changes)) == 1
    with pytest.raises(PermissionDenied):
        writer._link.service.open_follower(all_db.table("a.t").info.id, "mine", 1, None)
    with pytest.raises(PermissionDenied):
        writer.drop_follower("a.t", "mine")
    with pytest.raises(TableNotFound):
        stranger.drop_follower("a.t", "mine")
    reader.drop_follower("a.t", "mine")


def test_the_environment_may_hold_the_token(serve, connect, tokens, monkeypatch):
    monkeypatch.setenv("KOLK_TOKEN", secret(tokens, "*=all"))

    assert connect(serve()).tables() == []


def test_a_revoked_token_ends_calls_and_streams_that_run(serve, connect, schema, tokens):
    token, text = tokens.create("etl", [Grant.parse("*=all")])
    server = serve()
    db = connect(server, token=text)
    table = db.create_table("t", schema)
    table.put([{"id": 1, "v": "a"}])
    changes = iter(table.changelog(follow=True))
    next(changes)

    tokens.revoke(token.id)
    server._access._tokens._checked = float("-inf")

    with pytest.raises(Unauthenticated, match="revoked"):
        table.get_one(id=1)
    with pytest.raises(Unauthenticated):
        table.put([{"id": 2, "v": "b"}])
    with pytest.raises(Unauthenticated):
        next(changes)
    with pytest.raises(Unauthenticated, match="revoked"):
        connect(server, token=text)


def test_the_last_token_revoked_does_not_open_the_door(serve, connect, tokens):
    token, text = tokens.create("etl", [Grant.parse("*=all")])
    server = serve()
    connect(server, token=text)

    tokens.revoke(token.id)
    server._access._tokens._checked = float("-inf")

    with pytest.raises(Unauthenticated):
        connect(server)


def test_a_file_of_tokens_that_cannot_be_read_lets_nobody_in(serve, connect, tokens, tmp_path):
    text = secret(tokens, "*=all")
    server = serve()
    (tmp_path / "data" / "tokens.json").write_text("{}")
    server._access._tokens._checked = float("-inf")

    for token, said in ((None, "wants a token"), (text, "cannot check tokens")):
        with pytest.raises(Unauthenticated, match=said):
            connect(server, token=token)
    assert "tokens.json" in server.reasons()[0]


def test_each_operation_needs_its_grant(serve, connect, schema, tokens):
    server = serve()
    owner = connect(server, token=secret(tokens, "*=all", name="owner"))
    table = owner.create_table("web.pages", schema)
    table.put([{"id": 1, "v": "a"}])
    owner.create_table("hr.pay", schema)
    reader = connect(server, token=secret(tokens, "web.*=read", name="reader"))
    writer = connect(server, token=secret(tokens, "web.*=write", name="writer"))
    looker = connect(server, token=secret(tokens, "web.*=describe", name="looker"))

    read = reader.table("web.pages")
    assert read.get_one(id=1) == {"id": 1, "v": "a"}
    assert read.scan().to_arrow().num_rows == 1
    assert len(list(read.changelog())) == 1
    for forbidden in (
        lambda: read.put([{"id": 2, "v": "b"}]),
        lambda: read.delete([1]),
        read.truncate,
        lambda: reader.drop_table("web.pages"),
        lambda: reader.create_table("web.more", schema),
    ):
        with pytest.raises(PermissionDenied, match="reader may not"):
            forbidden()

    write = writer.table("web.pages")
    write.put([{"id": 2, "v": "b"}])
    for forbidden in (
        lambda: write.get_one(id=1),
        lambda: write.scan().to_arrow(),
        lambda: list(write.changelog()),
        lambda: writer.drop_table("web.pages"),
    ):
        with pytest.raises(PermissionDenied, match="writer may not"):
            forbidden()

    assert looker.table("web.pages").describe()["name"] == "web.pages"
    with pytest.raises(PermissionDenied, match="looker may not read"):
        looker.table("web.pages").get_one(id=1)
    assert table.get_one(id=2) == {"id": 2, "v": "b"}


def test_who_may_only_create_does_not_learn_what_is_there(serve, connect, schema, tokens):
    server = serve()
    connect(server, token=secret(tokens, "*=all", name="owner")).create_table("hr.pay", schema)
    maker = connect(server, token=secret(tokens, "*=create", name="maker"))

    with pytest.raises(PermissionDenied, match="maker may not describe"):
        maker.create_table("hr.pay", schema, if_not_exists=True)
    assert maker.create_table("hr.more", schema, if_not_exists=True).name == "hr.more"


def test_what_may_not_be_written_is_told_at_once_also_in_a_stream(serve, connect, schema, tokens):
    server = serve()
    connect(server, token=secret(tokens, "*=all", name="owner")).create_table("t", schema)
    table = connect(server, token=secret(tokens, "*=read", name="reader")).table("t")
    batch = pa.table({"id": range(20_000), "v": ["x" * 500] * 20_000})
    table._link.service._retry._pause = lambda seconds: pytest.fail(f"waited {seconds} s")

    with pytest.raises(PermissionDenied, match="reader may not write") as caught:
        list(table.put_stream([batch] * 6))

    assert caught.value.tag is not None


def test_a_token_does_not_leave_this_machine_in_the_clear():
    with pytest.raises(InvalidArgument, match="allow_plaintext") as caught:
        kolk.connect("kolk://192.0.2.1:9", token="kolk_secret")
    assert "kolk_secret" not in str(caught.value)
    with pytest.raises((Unreachable, TimedOut)):
        kolk.connect("kolk://192.0.2.1:9", token="kolk_secret", allow_plaintext=True, timeout=0.2)


@pytest.mark.parametrize("url", ["kolk://me:hunter2@h:99999", "kolk://h:1?token=hunter2", "kolk://h:1/hunter2"])
def test_a_secret_in_an_address_is_not_quoted(url):
    with pytest.raises(InvalidArgument) as caught:
        kolk.connect(url)
    assert "hunter2" not in str(caught.value)


def test_metrics_want_a_token_where_calls_do(serve, tokens):
    text = secret(tokens, "t=read")
    server = serve(http_port=0)

    with urllib.request.urlopen(_bearing(f"{server.http_url}/metrics", text)) as answer:
        assert answer.status == 200
    with pytest.raises(urllib.error.HTTPError, match="401") as caught:
        urllib.request.urlopen(f"{server.http_url}/metrics")
    caught.value.close()
    with urllib.request.urlopen(f"{server.http_url}/ready") as answer:
        assert answer.status == 200


def test_tables_of_others_are_not_there(serve, connect, schema, tokens):
    server = serve()
    owner = connect(server, token=secret(tokens, "*=all", name="owner"))
    hidden = owner.create_table("hr.pay", schema)
    owner.create_table("web.pages", schema)
    reader = connect(server, token=secret(tokens, "web.*=all", name="reader"))

    assert [table.name for table in reader.tables()] == ["web.pages"]
    with pytest.raises(TableNotFound) as caught:
        reader.table("hr.pay")
    assert "hr.pay" not in str(caught.value).partition(";")[2]
    with pytest.raises(TableNotFound):
        reader.drop_table("hr.pay")
    # With the id, too, which is a small number and easily guessed.
    foreign = reader.table("web.pages")
    foreign._info = hidden.info
    for call in (
        lambda: foreign.get_one(id=1),
        lambda: foreign.put([{"id": 1, "v": "a"}]),
        foreign.describe,
        foreign.truncate,
        lambda: foreign.scan().to_arrow(),
    ):
        with pytest.raises(TableNotFound):
            call()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_beyond_this_machine_a_server_wants_tls_and_tokens(serve, tokens, certificates, host):
    tls = files(certificates, tls_cert="server.pem", tls_key="server.key")

    with pytest.raises(InvalidArgument, match=r"needs TLS.*--tls-cert"):
        serve(host=host)
    with pytest.raises(InvalidArgument, match="kolk token create"):
        serve(host=host, **tls)
    with pytest.raises(InvalidArgument, match="kolk token create"):
        serve(host=host, allow_plaintext=True)


def test_beyond_this_machine_it_serves_with_both(serve, connect, tokens, certificates):
    text = secret(tokens, "*=all")
    server = serve(host="0.0.0.0", http_port=0, **files(certificates, tls_cert="server.pem", tls_key="server.key"))
    url = server.url.replace("0.0.0.0", "127.0.0.1")

    assert connect(url, token=text, **files(certificates, tls_ca="ca.pem")).tables() == []
    with pytest.raises(Unauthenticated):
        connect(url, **files(certificates, tls_ca="ca.pem"))
    context = ssl.create_default_context(cafile=certificates / "ca.pem")
    metrics = f"{server.http_url}/metrics".replace("0.0.0.0", "127.0.0.1")
    with urllib.request.urlopen(_bearing(metrics, text), context=context) as answer:
        assert answer.status == 200
    for token in (None, "nonsense"):
        with pytest.raises(urllib.error.HTTPError, match="401") as caught:
            urllib.request.urlopen(_bearing(metrics, token), context=context)
        caught.value.close()


def _bearing(url, token):
    return urllib.request.Request(url, headers={} if token is None else {"Authorization": f"Bearer {token}"})


def test_tls_encrypts_and_a_wrong_authority_is_refused(serve, connect, schema, certificates, tmp_path):
    server = serve(**files(certificates, tls_cert="server.pem", tls_key="server.key"))
    trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")

    assert server.url.startswith("kolk+tls://127.0.0.1:")
    db = connect(server, **files(certificates, tls_ca="ca.pem"))
    db.create_table("t", schema).put([{"id": 1, "v": "a"}])
    plain = server.url.replace("kolk+tls", "kolk")
    for url, options in (
        (plain, {}),
        (server.url, {}),
        (server.url, {"tls_ca": str(tmp_path / "other.pem")}),
    ):
        with pytest.raises((Unreachable, TimedOut)):
            connect(url, timeout=1, **options)


def test_with_mutual_tls_a_client_without_certificate_is_refused(serve, connect, certificates):
    server = serve(**files(certificates, tls_cert="server.pem", tls_key="server.key", tls_client_ca="ca.pem"))
    mine = files(certificates, tls_ca="ca.pem", tls_cert="client.pem", tls_key="client.key")

    assert connect(server, **mine).tables() == []
    with pytest.raises((Unreachable, TimedOut)):
        connect(server, timeout=1, **files(certificates, tls_ca="ca.pem"))


def test_settings_of_tls_that_make_no_sense_are_refused(serve, certificates, tmp_path):
    with pytest.raises(InvalidArgument, match="go together"):
        ServerConfig(tls_cert="a")
    with pytest.raises(InvalidArgument, match="needs tls_cert"):
        ServerConfig(tls_client_ca="a")
    with pytest.raises(InvalidArgument, match="cannot be read"):
        serve(tls_cert=str(tmp_path / "none"), tls_key=str(tmp_path / "none"))
    with pytest.raises(InvalidArgument, match="takes no token"):
        kolk.connect(tmp_path / "folder", token="x")
    with pytest.raises(InvalidArgument, match="go together"):
        kolk.connect("kolk://127.0.0.1:9", tls_cert="a")


def test_no_secret_is_in_any_log_metric_error_or_status(serve, connect, schema, tokens):
    text = secret(tokens, "t=all")
    planted = "kolk_" + "a" * 16 + "_" + "b" * 64
    stream, logger = io.StringIO(), logging.getLogger("kolk.test_secrets")
    log_to(stream, logger, logging.DEBUG)
    server = serve(events=Events(logger), http_port=0)
    told = [repr(server.config), str(server.status())]
    for token in (planted, text[:-1] + ("0" if text[-1] != "0" else "1"), None, "Bearer " + text):
        with pytest.raises(Unauthenticated) as caught:
            connect(server, token=token)
        told.append(f"{caught.value!r} {caught.value.__cause__!r}")
    db = connect(server, token=text)
    table = db.create_table("t", schema)
    table.put([{"id": 1, "v": "row-secret"}])
    with pytest.raises(PermissionDenied) as caught:
        db.create_table("u", schema)
    told += [repr(caught.value), repr(db), repr(db._link.service.__class__), json.dumps(db.status())]
    for page in ("metrics", "status", "ready", "live", ""):
        told.append(urllib.request.urlopen(_bearing(f"{server.http_url}/{page}", text)).read().decode())
    server.close()

    everything = "\n".join([*told, stream.getvalue()])
    assert "security.unauthenticated" in everything
    for hidden in (text, text.rpartition("_")[2], planted, "b" * 64, "row-secret"):
        assert hidden not in everything


def test_the_log_says_who_was_denied_what_on_which_table(serve, connect, schema, tokens):
    stream, logger = io.StringIO(), logging.getLogger("kolk.test_denied")
    log_to(stream, logger, logging.DEBUG)
    server = serve(events=Events(logger))
    connect(server, token=secret(tokens, "*=all", name="owner")).create_table("web.pages", schema)
    reader = connect(server, token=secret(tokens, "web.*=read", name="reader"))
    table = reader.table("web.pages")
    for forbidden in (
        lambda: table.put([{"id": 1, "v": "a"}]),
        lambda: reader.drop_table("web.pages"),
        lambda: reader.create_table("web.more", schema),
        lambda: table.writer("job", ["v"]),
        lambda: table.transaction("job", 1).put([{"id": 1, "v": "a"}]),
    ):
        with pytest.raises(PermissionDenied):
            forbidden()
    server.close()

    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    denied = [line for line in lines if line["event"] == "security.denied"]
    assert [(line["method"], line["table"]) for line in denied] == [
        ("Put", "web.pages"),
        ("DropTable", "web.pages"),
        ("CreateTable", "web.more"),
        ("BeginOwner", "web.pages"),
        ("Stage", "web.pages"),
    ]
    assert {(line["principal"], line["error"]) for line in denied} == {("reader", "PermissionDenied")}


def test_altering_needs_the_right_to_alter_and_nothing_else(serve, connect, schema, tokens):
    admin = secret(tokens, "*=all", name="admin")
    alters = secret(tokens, "t=alter", name="alters")
    writes = secret(tokens, "t=read,write,create,drop", name="writes")
    server = serve()
    connect(server, token=admin).create_table("t", schema)

    table = connect(server, token=alters).table("t")
    table.add_column("x", "int")

    assert table.schema.names[-1] == "x"
    other = connect(server, token=writes).table("t")
    for change in (lambda: other.drop_column("x"), lambda: other.set_options({"table.log.ttl": "7d"})):
        with pytest.raises(PermissionDenied, match="may not alter"):
            change()
