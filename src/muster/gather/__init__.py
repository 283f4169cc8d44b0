"""`muster gather` and `muster join`: machines that register themselves become an inventory."""
