"""The options of Spark: every spelling is understood, and what nobody knows is refused."""

import pytest

from kolk.errors import InvalidArgument
from kolk.spark.options import OPTIONS, Options, check_read


@pytest.mark.parametrize("spelling", ["tls-ca", "tlsCa", "tls_ca", "TLSCA", "tlsca"])
def test_an_option_is_known_however_it_is_spelled(spelling):
    assert Options.parse({spelling: "ca.pem"}).text("tls-ca") == "ca.pem"


def test_a_name_that_nobody_knows_is_refused_with_the_one_that_was_meant():
    with pytest.raises(InvalidArgument, match=r"no option 'tabel'; did you mean 'table'\?"):
        Options.parse({"tabel": "t"})


def test_a_name_that_is_like_no_other_leads_to_the_docs():
    with pytest.raises(InvalidArgument, match=r"docs/spark\.md"):
        Options.parse({"zzzzzzzzzzzz": "t"})


@pytest.mark.parametrize(
    ("is_stream", "kind", "given"),
    [
        (True, "batch read", {"limit": "1", "stop": "latest", "cutTtl": "1m", "cut-linger": "1m"}),
        (True, "batch read", {"source": "snapshot"}),
        (False, "readStream", {"maxRowsPerTrigger": "1", "maxBytesPerTrigger": "1", "follower": "f", "leaseTtl": "1h"}),
    ],
)
def test_what_only_the_other_kind_of_read_looks_at_is_refused(is_stream, kind, given):
    for name, value in given.items():
        with pytest.raises(InvalidArgument, match=f"is for a {kind} alone.*leave it out"):
            check_read(Options.parse({name: value}), is_stream=is_stream)
        check_read(Options.parse({name: value}), is_stream=not is_stream)


def test_a_stream_may_say_that_it_reads_a_changelog():
    check_read(Options.parse({"source": "changelog", "start": "earliest"}), is_stream=True)


def test_what_spark_adds_by_itself_is_no_mistake():
    assert Options.parse({"checkpointlocation": "/c", "queryname": "q"}).text("checkpointlocation") == "/c"


def test_the_path_of_a_load_is_the_table_unless_a_table_is_named():
    assert Options.parse({"path": "web.pages"}).required("table") == "web.pages"
    assert Options.parse({"path": "x", "table": "web.pages"}).required("table") == "web.pages"


def test_the_environment_of_the_driver_says_what_the_options_leave_open(monkeypatch):
    monkeypatch.setenv("KOLK_URL", "kolk://a:1")
    monkeypatch.setenv("KOLK_TOKEN", "secret")

    assert Options.parse({}).required("url") == "kolk://a:1"
    assert Options.parse({}).text("token") == "secret"
    assert Options.parse({"url": "kolk://b:2"}).required("url") == "kolk://b:2"


def test_what_is_missing_is_asked_for_by_name(monkeypatch):
    monkeypatch.delenv("KOLK_URL", raising=False)

    with pytest.raises(InvalidArgument, match=r"\.option\('url', 'kolk://127\.0\.0\.1:9123'\)"):
        Options.parse({}).required("url")


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "ten", "٣", "9" * 30])
def test_a_number_is_a_whole_one_from_1_on(text):
    with pytest.raises(InvalidArgument, match="whole number from 1 on"):
        Options({"x": text}).number("x")


def test_values_are_read_as_what_they_stand_for():
    options = Options({"n": "12", "names": " a, b ,c,", "yes": "TRUE", "time": "10m", "plain": "2.5", "word": "Undo"})

    assert options.number("n") == 12
    assert options.names("names") == ("a", "b", "c")
    assert options.is_on("yes")
    assert options.seconds("time", "1s") == 600
    assert options.seconds("plain", "1s") == 2.5
    assert options.choice("word", ("transaction", "undo")) == "undo"


def test_what_was_not_given_has_its_default():
    options = Options({})

    assert options.number("n") is None
    assert options.names("names") is None
    assert options.is_on("yes", default=True)
    assert options.seconds("time", "30s") == 30
    assert options.choice("word", ("transaction", "undo")) == "transaction"


@pytest.mark.parametrize(
    "read",
    [
        lambda options: options.is_on("x"),
        lambda options: options.choice("x", ("a", "b")),
        lambda options: options.seconds("x", "1s"),
    ],
)
def test_a_value_that_stands_for_nothing_is_refused_by_the_name_of_its_option(read):
    with pytest.raises(InvalidArgument, match="'x'"):
        read(Options({"x": "perhaps"}))


def test_no_two_options_of_one_use_are_spelled_alike():
    plain = [(option.used_by, option.name.lower().replace("-", "").replace("_", "")) for option in OPTIONS]

    assert len(set(plain)) == len(plain)


def test_an_option_of_several_uses_is_spelled_the_same_way_in_all():
    spellings = {(option.name.lower().replace("-", "").replace("_", ""), option.name) for option in OPTIONS}

    assert len({plain for plain, _ in spellings}) == len(spellings)
