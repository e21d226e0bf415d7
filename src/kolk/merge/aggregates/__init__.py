"""The aggregate functions, each over whole Arrow columns: ``kolk.model.functions`` says what there is of each."""
