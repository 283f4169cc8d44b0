"""`muster bench`: from a suite and hosts to many jobs on groups of them, and one verdict per host."""
