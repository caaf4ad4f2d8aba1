// Packed blocks that are put together in shared memory, in units of 16 bits, before they leave in whole words.

// Copies `units` 16-bit units to a place at an even distance from an aligned one, in words as far as may be.
FN void copy_staged(DEVICE uchar* base, place_t offset, const SHARED ushort* staged, uint units, uint lane) {
  const uint lead = uint(offset / 2 % 2);
  if (lane == 0 && lead == 1) store_u16(base + offset, staged[0]);
  const uint words = (units - lead) / 2;
  for (uint word = lane; word < words; word += 32) {
    const uint unit = lead + word * 2;
    store_u32(base + offset + unit * 2, uint(staged[unit]) | uint(staged[unit + 1]) << 16);
  }
  const uint done = lead + words * 2;
  if (lane == 31 && done < units) store_u16(base + offset + done * 2, staged[done]);
}
