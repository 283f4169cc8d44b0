"""A run folder's data -> one self-contained HTML page. Pure: same input, same output."""
