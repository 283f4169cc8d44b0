"""`muster bench`: a suite on hosts -> many jobs on groups of them, one verdict per host."""
