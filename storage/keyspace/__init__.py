"""Plain keys: strings, hashes and sorted sets with deadlines, in the catalog that everything else is in.

`space.Keyspace` gives out transactions; the operations are functions over them, a module a type.
"""
