"""Operations of an alter cross the socket and are the same; what is none is refused when it is read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolk.errors import InvalidInput
from kolk.model.table import TableSpec
from kolk.testing.evolutions import evolved
from kolk.testing.strategies import data_types, schemas
from kolk.wire import messages as m
from kolk.wire.operations import decode_operations, encode_operations


@given(st.data())
def test_operations_come_back_as_they_were(data):
    spec = TableSpec.make("t", data.draw(schemas()))
    operations, _ = data.draw(evolved(spec, data_types(max_depth=1)))

    sent = m.encode(m.AlterTable(table=1, based_on=1, changes=encode_operations(operations)))

    assert decode_operations(m.decode_action(sent).changes) == operations


@pytest.mark.parametrize(
    "change",
    [
        m.AddColumn(m.ColumnText("../x", "int")),
        m.AddColumn(m.ColumnText("x", "nothing")),
        m.AddColumn(m.ColumnText("x", "int", default="soon")),
        m.AddColumn(m.ColumnText("x", "int"), first=True, after="y"),
        m.WidenColumn("x", "nothing"),
        m.MoveColumn("x"),
    ],
)
def test_what_is_no_operation_is_refused(change):
    with pytest.raises(InvalidInput):
        decode_operations([change])
