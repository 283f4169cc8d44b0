"""The group measurement: what is asked of real ranks, their figures, and what they come to. Pure."""
