"""Readers of logs that other tools wrote: one module per format, pure, over one pass of lines.

A module is a reader by being here (or an entry point of the group muster.readers), and has:

FORMAT                   the name of the format, in a few words
HINTS                    a line goes to the reader only where it contains one of these; ("",): every line
Reader(frame)            a reader of one file, with what follows

    line(text)           a line, without its end; never raises, whatever it contains
    readings()           after the last line: the readings, best first; empty: it is another format
    closed               optional: true from when it needs no more lines

Every reader sees the same pass, so a file may be a stream; none keeps more than a bounded number of windows.
What all formats share (hosts, launcher, failures) is read by `_frame.Frame`, which a reader may ask;
`frame.user` is what the user says of own formats.
"""
