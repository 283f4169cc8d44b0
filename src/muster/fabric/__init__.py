"""The network and the devices of a group of hosts, measured by real ranks."""
