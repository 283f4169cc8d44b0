"""The group checks as real ranks: collectives, links, matrix products, disks. Hosts need torch alone."""
