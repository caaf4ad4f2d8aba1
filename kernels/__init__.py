"""Storage formats of K/V rows: bytes per row, pack, unpack; one oracle and several backends."""
