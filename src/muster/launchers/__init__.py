"""Floor 3: how an agent gets onto a host. One file each, blind to each other.

A launcher module has
    ONE_MACHINE                                  whether its hosts are one machine's pretend hosts
    remote(placement, launch, argv) -> argv      how a plain command is run on the host; pure
    describe(placement, launch, job_id) -> argv  the command that starts the agent; pure, a dry run prints it
    connect(placement, launch, job_id, shell)    starts exactly that, and returns the process
"""
