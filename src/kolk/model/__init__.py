"""Pure values and pure transitions: types, schemas, names, tables, changes, write tags. No I/O, no clock."""
