"""Log lines of nodes. Standard library and job dir only; runs on machines, too.

A node's lines are in `attempts/<n>/nodes/<node>/log/00000001.gz` and so on. Each object is a sequence of gzip
members, and each member contains lines as JSON arrays `[time, rank, stream, text, partial]`. The newest object is
replaced by a longer one as lines come, until it has CHUNK_BYTES. There are thus few objects, the part that a reader
has seen never changes, and following a log costs one listing and a ranged read of the new part.

format   lines, members and the names of objects
writer   LogWriter, on the machines
reader   LogReader
members  members of an object, from an offset on
tail     the last lines of a log, read from its end
"""
