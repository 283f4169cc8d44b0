"""Floor 6: check, plan, train, ask, report ... as plain functions: the library's public face."""
