"""What runs on hosts: Python 3.8 or later, the standard library, and nothing of Muster outside this folder.

The modules import one another by relative names, since on a host the package has another one:
  agent      the loop of a job: talk, host, files, ranks, ending, sampler, gpu and proc are its parts
  look       where ranks stand; its text goes to the agents that run, when a job makes no progress
  probe      the program of `muster check`, with talk and the families' probes
  provision  the program of `muster prepare`, with talk and files, as a zip
  inside     in every Python program of a job, as sitecustomize
  member     `muster join`; one file that imports none of the others, for machines without Muster
"""
