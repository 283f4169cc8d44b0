"""Floor 3: how an agent gets onto a host. One file each, blind to each other.

A launcher module has
    ONE_MACHINE                              whether its hosts are one machine's pretend hosts
    DIALS                                    whether its agents dial home, so that a Home is needed
    requests(places, launch, job_id, home)   the processes that start all agents; a dry run prints them
    remote(place, launch, argv) -> argv      how a plain command runs on the host, its output byte-exact
Both functions are pure.
"""
