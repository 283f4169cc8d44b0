"""The fabric: collectives, links and matrix products between real ranks. Nothing is trained."""
