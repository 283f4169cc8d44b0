"""The fabric: collectives, links and matrix products between real ranks. Nothing is trained.

The workload and `muster check` (muster/checks/group.py) share all but the ends. Ranks run rank.py: the
questions in order, of collectives.py (values, message sizes, pairs, a product over all) and devices.py, in a
group.py that meets; train.py starts it as a workload, __main__.py as a check, where torch alone is there.
The control side reads request.py (what is asked) and figures.py (what the events come to).
"""
