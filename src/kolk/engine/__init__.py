"""The database in one process: catalog, tablets and the operations over them."""
