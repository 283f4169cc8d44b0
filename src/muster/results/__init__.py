"""From events to a result: one fold, and one list of figures for terminal, page and files. Pure."""
