"""The agent's source. It runs on hosts, on Python 3.8 or later and the standard library alone, and is sent
as text."""
