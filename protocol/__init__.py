"""RESP2 and RESP3 as bytes in, events out: parser, replies, command table, limits. Does no I/O."""
