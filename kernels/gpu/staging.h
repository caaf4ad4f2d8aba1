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

// The same for a place that is `lead` units after a word's, 0 or 1, and units that were staged `lead` units after the
// beginning: words of the stage are words of memory.
FN void copy_units(DEVICE uchar* to, const SHARED uint* staged, uint lead, uint units, uint lane) {
  const SHARED ushort* all = (const SHARED ushort*)staged;
  DEVICE uchar* base = to - lead * 2;
  const uint end = lead + units;
  if (lead == 1 && lane == 0) *(DEVICE ushort*)to = all[1];
  for (uint word = lead + lane; word < end / 2; word += 32) *(DEVICE uint*)(base + word * 4) = staged[word];
  if (end % 2 == 1 && lane == 31) *(DEVICE ushort*)(base + end * 2 - 2) = all[end - 1];
}
