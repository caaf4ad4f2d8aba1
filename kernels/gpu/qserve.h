// qserve4: for each head of a row an fp16 scale and an fp16 offset; 4-bit codes, all codes of a row first. LANES lanes share
// a head; a head of more octets is gone through in steps.

struct Qserve {
  float scale;
  float offset;
  bool constant_head;
};

FN Qserve choose_qserve(float low, float high) {
  Qserve chosen;
  chosen.scale = half_to_float(float_to_half(quotient(sub(high, low), 15.0f)));
  const float offset = quotient(sub(0.0f, low), chosen.scale > 0.0f ? chosen.scale : 1.0f);
  chosen.constant_head = !(chosen.scale > 0.0f) || magnitude(offset) > 65504.0f;
  chosen.offset = half_to_float(float_to_half(offset));
  if (chosen.constant_head) {
    chosen.scale = half_to_float(float_to_half(low));
    chosen.offset = -1.0f;
  }
  return chosen;
}

FN uint qserve_word(Octet values, Qserve chosen) {
  uint word = 0;
  UNROLL for (uint i = 0; i < 8; ++i) {
    const float steps = add(quotient(values.at[i], chosen.constant_head ? 1.0f : chosen.scale), chosen.offset);
    const uint code = uint(most(least(nearest(steps), 15.0f), 0.0f));
    word |= (chosen.constant_head ? 0u : code) << 4 * i;
  }
  return word;
}

// Up to four bytes of codes; fewer at the end of a head of an odd size.
FN void store_nibbles(DEVICE uchar* to, uint bytes, uint word) {
  if (bytes >= 4) {
    store_u32(to, word);
    return;
  }
  for (uint i = 0; i < bytes; ++i) to[i] = uchar(word >> 8 * i);
}

FN uint load_nibbles(const DEVICE uchar* from, uint bytes) {
  if (bytes >= 4) return load_u32(from);
  uint word = 0;
  for (uint i = 0; i < bytes; ++i) word |= uint(from[i]) << 8 * i;
  return word;
}
