"""Hosts and the connections to them: launchers, agents, transport, supervision, processes of this machine."""
