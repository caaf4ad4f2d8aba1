"""Users: who they are, what they may run, and which names they may use."""
