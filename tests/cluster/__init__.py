"""A cluster of hosts on one machine, made of Linux namespaces, on which Muster's launchers are tested."""
