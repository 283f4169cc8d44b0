"""Floor 0: frozen data and pure functions. Reads files only where a function's name says so; starts nothing.
"""
