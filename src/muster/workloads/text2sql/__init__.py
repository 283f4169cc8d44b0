"""Text to SQL: seq2seq whose targets are queries, which a row's database runs."""
