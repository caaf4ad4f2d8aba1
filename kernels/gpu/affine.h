// mlx's group-affine layouts: codes of a row, then fp16 scales of its groups, then fp16 biases.

enum { MLX = 0, ROUND_TRIP = 1 };

struct Affine {
  float scale;
  float bias;
};

FN uint affine_row_bytes(uint dim, uint bits, uint group) {
  return dim / 8 * bits + dim / group * 4;
}

// mx.quantize's rule on a CPU, as the oracle states it.
FN Affine choose_affine(float low, float high, float steps) {
  const bool low_is_end = magnitude(low) > magnitude(high);
  const float size = most(corrected_quotient(sub(high, low), steps, 1.0f / steps), 1e-7f);
  const float end = low_is_end ? low : high;
  const float scale = low_is_end ? size : -size;
  const float whole = nearest(quotient(end, scale));
  Affine chosen = {scale, 0.0f};
  if (whole != 0.0f) {
    chosen.scale = quotient(end, whole);
    chosen.bias = end;
  }
  return chosen;
}

// The rule that aims at the scale and bias as they are stored.
FN Affine choose_affine_for_stored(float low, float high, float steps) {
  Affine chosen;
  chosen.scale = half_to_float(float_to_half(corrected_quotient(sub(high, low), steps, 1.0f / steps)));
  chosen.bias = half_to_float(float_to_half(low));
  return chosen;
}

template <int BITS, int VARIANT>
FN Affine chosen_affine(Range range) {
  constexpr float top = float((1 << BITS) - 1);
  return VARIANT == MLX ? choose_affine(range.low, range.high, top)
                        : choose_affine_for_stored(range.low, range.high, top);
}

// Codes of an octet. Its float32 subnormals need no flushing: no scale is small enough for them to count.
template <int BITS, int VARIANT>
FN void affine_words(Octet values, Affine affine, float inverse, LOCAL uint* words) {
  constexpr float top = float((1 << BITS) - 1);
  float raised[8];
  UNROLL for (uint i = 0; i < 8; ++i) {
    const float above = sub(values.at[i], affine.bias);
    if (VARIANT == MLX) {
      raised[i] = add(least(corrected_quotient(above, affine.scale, inverse), top), ROUNDER);
    } else {
      raised[i] = add(float(uint(most(least(add(mul(above, inverse), 0.5f), top), 0.0f))), ROUNDER);
    }
  }
  UNROLL for (uint i = 0; i < BITS / 4; ++i) words[i] = packed_codes<BITS>(raised + i * (32 / BITS));
}

// A column of STEPS octets a lane. The lanes of a group of elements find its ends together; then each chooses the scale and
// bias of its group in one of the rows, so that this is done once for STEPS octets.
template <int ELEMENT, int BITS, int LANES, int STEPS, int VARIANT, bool WHOLE>
FN void pack_affine(const DEVICE uchar* source, Rows rows, uint row_count, uint dim, float limit, DEVICE uchar* out,
                    DEVICE uint* refused, uint index, uint count, uint lane) {
  const uint octets = dim / 8;
  const uint columns = columns_of<STEPS>(row_count, octets);
  const uint row_bytes = affine_row_bytes(dim, BITS, LANES * 8);
  const uint scales_at = octets * BITS;
  const uint biases_at = scales_at + octets / LANES * 2;
  const uint own_step = lane % LANES % STEPS;
  const uint first_of_group = lane - lane % LANES;
  uint first = NONE;
  for (uint begin = index - lane; begin < columns; begin += count) {
    const bool inside = begin + lane < columns;
    const Column at = column_at<STEPS>(at_most(begin + lane, columns - 1), octets);
    RawOctet loaded[STEPS];
    load_column<ELEMENT, STEPS, WHOLE>(source, rows, at.row, row_count, at.octet, loaded);
    Ends own = {0, 0};
    UNROLL for (uint step = 0; step < STEPS; ++step) {
      const Ends ends = ends_over<ELEMENT, LANES>(ends_of<ELEMENT>(loaded[step]));
      own.low = own_step == step ? ends.low : own.low;
      own.high = own_step == step ? ends.high : own.high;
    }
    const Range range = range_of<ELEMENT>(own);
    if (any_of_lanes(!within(range, limit))) {
      ROLLED for (uint row = at.row; row < at.row + STEPS && row < row_count; ++row) {
        const RawOctet raw = load_octet<ELEMENT, WHOLE>(source, rows, row, at.octet);
        const uint beyond = first_refused(octet_of<ELEMENT>(raw), limit);
        if (beyond != NONE) first = at_most(first, row * dim + at.octet * 8 + beyond);
      }
    }

    const Affine chosen = chosen_affine<BITS, VARIANT>(range);
    const bool has_inverse = VARIANT == MLX || chosen.scale > 0.0f;
    const float inverse = has_inverse ? quotient(1.0f, has_inverse ? chosen.scale : 1.0f) : 0.0f;
    // Rows past the last are stored over the last, which they repeat.
    if (inside && lane % LANES < STEPS) {
      DEVICE uchar* group_at = out + place_t(at_most(at.row + own_step, row_count - 1)) * row_bytes + at.octet / LANES * 2;
      *(DEVICE ushort*)(group_at + scales_at) = ushort(float_to_half(chosen.scale));
      *(DEVICE ushort*)(group_at + biases_at) = ushort(float_to_half(chosen.bias));
    }
    UNROLL for (uint step = 0; step < STEPS; ++step) {
      const uint from = first_of_group + step;
      const Affine affine = {from_lane(chosen.scale, from), from_lane(chosen.bias, from)};
      uint words[2];
      affine_words<BITS, VARIANT>(octet_of<ELEMENT>(loaded[step]), affine, from_lane(inverse, from), words);
      DEVICE uchar* codes = out + place_t(at_most(at.row + step, row_count - 1)) * row_bytes + at.octet * BITS;
      if (BITS == 4) {
        if (inside) *(DEVICE uint*)codes = words[0];
      } else {
        if (inside) store_u64(codes, words);
      }
    }
  }
  first = least_of_lanes(first);
  if (lane == 0) refused[index / 32] = first;
}

// Whether no product and no sum of the group can leave fp16's range.
FN bool is_modest(float scale, float bias, float top) {
  return mul(top, magnitude(scale)) <= 32000.0f && magnitude(bias) <= 32000.0f;
}

// fp16(fp16(code * scale) + bias); saturates where mx.dequantize would overflow.
FN float affine_value(uint code, float scale, float bias) {
  const float product = mul(float(code), scale);
  const float rounded = half_to_float(float_to_half(product));
  const float sum = add(magnitude_bits(rounded) == INFINITE ? product : rounded, bias);
  return half_to_float(float_to_half(saturated(sum, largest_bits<F16>())));
}

// The values of an octet as fp16, two in each word.
template <int BITS>
FN void affine_pairs(const LOCAL uint* words, uint scale_bits, uint bias_bits, LOCAL uint* pairs) {
  const float top = float((1 << BITS) - 1);
  const uint mask = (1 << BITS) - 1;
  const float scale = half_to_float(scale_bits);
  const float bias = half_to_float(bias_bits);
  uint codes[4];
  UNROLL for (uint i = 0; i < 4; ++i) {
    const uint both = words[2 * i * BITS / 32] >> 2 * i * BITS % 32;
    codes[i] = (both & mask) | (both >> BITS & mask) << 16;
  }
  if (is_modest(scale, bias, top)) {
    UNROLL for (uint i = 0; i < 4; ++i) {
      const uint product = product_of_halves(halves_of_integers(codes[i]), scale_bits | scale_bits << 16);
      pairs[i] = sum_of_halves(product, bias_bits | bias_bits << 16);
    }
  } else {
    UNROLL for (uint i = 0; i < 4; ++i) {
      pairs[i] = floats_to_halves(affine_value(codes[i] & 0xffffu, scale, bias),
                                  affine_value(codes[i] >> 16, scale, bias));
    }
  }
}

template <int ELEMENT>
FN void store_half_pairs(DEVICE uchar* to, Rows rows, uint row, uint octet, RawOctet pairs) {
  if (ELEMENT == F16) {
    store_octet_pairs(to, rows, row, octet, pairs);
    return;
  }
  Octet values;
  UNROLL for (uint i = 0; i < 8; ++i) values.at[i] = half_to_float(element_bits<F16>(pairs, i));
  store_octet<ELEMENT>(to, rows, row, octet, values);
}
