"""The algebra of rows, pure and vectorised over Arrow: old rows and new rows in, changes out."""
