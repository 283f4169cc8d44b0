"""Events -> result: one fold, one set of figures for terminal, page and files. Pure."""
