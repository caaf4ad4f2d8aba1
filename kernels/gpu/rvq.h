// rvq1, rvq2: for each head the codes of two stages of BITS / 2 bits and a bfloat16 gain. LANES lanes share a head, an octet
// each. RVQ_FIRST, RVQ_SECOND and RVQ_SIGNS come from kernels/codebooks.py.

struct Pick {
  uint code;
  float level;
};

template <int STAGE>
FN float rvq_level(uint i) {
  constexpr int first[] = {RVQ_FIRST};
  constexpr int second[] = {RVQ_SECOND};
  return float(STAGE == 1 ? first[i] : second[i]) * 0.00390625f;
}

// The code is the number of midpoints that the value exceeds.
template <int STAGE, int COUNT>
FN Pick rvq_pick(float value) {
  Pick pick = {0, rvq_level<STAGE>(0)};
  UNROLL for (uint i = 1; i < COUNT; ++i) {
    const bool above = value > mul(add(rvq_level<STAGE>(i), rvq_level<STAGE>(i - 1)), 0.5f);
    pick.code += above ? 1 : 0;
    pick.level = above ? rvq_level<STAGE>(i) : pick.level;
  }
  return pick;
}

template <int STAGE, int COUNT>
FN float rvq_level_of(uint code) {
  float level = rvq_level<STAGE>(0);
  UNROLL for (uint i = 1; i < COUNT; ++i) level = code >= i ? rvq_level<STAGE>(i) : level;
  return level;
}

FN Octet with_signs(Octet values, uint octet) {
  constexpr uint words[] = {RVQ_SIGNS};
  const uint signs = words[octet / 4 % 8] >> octet % 4 * 8;
  UNROLL for (uint i = 0; i < 8; ++i) {
    const bool flipped = (signs >> i & 1u) == 1u;
    values.at[i] = flipped ? -values.at[i] : values.at[i];
  }
  return values;
}

// The sums of a head's blocks of 32, from left to right. Every lane of the head has the sum of its own block.
template <int LANES>
FN float sum_of_blocks(float block_sum, uint lane) {
  const uint first = lane - lane % LANES;
  float sum = from_lane(block_sum, first);
  UNROLL for (uint i = 4; i < LANES; i += 4) sum = add(sum, from_lane(block_sum, first + i));
  return sum;
}

template <int BITS>
FN void store_stage(DEVICE uchar* to, uint word) {
  if (BITS == 1) {
    to[0] = uchar(word);
  } else {
    store_u16(to, word);
  }
}

template <int BITS>
FN uint load_stage(const DEVICE uchar* from) {
  return BITS == 1 ? uint(from[0]) : load_u16(from);
}
