"""The second tier: a store that already is distributed, which several servers share.

interface   what a tier has to do, and how it fails
redis_tier  Valkey, Redis, and clusters of them
shards      which node of a cluster has a key
wire        connections to a node
objects     object stores and folders, by obstore
record      what is kept for a prefix: the catalog record, and its bytes in pieces
guard       deadlines, breakers, measured bandwidth
patience    how long one read may use the tier
publisher   write-behind
reader      read-through
link        what the commands of the server call
"""
