// What a layer computes between its products, each in one pass over its numbers: the norm, the heads' norm with RoPE,
// and the gate of the MLP. All are float32 inside, and each result is rounded once.
#include "lines.h"

static inline Line sigmoid(const Line& x) {
  // e^-|x| cannot overflow; of a negative x the sigmoid is what is left of 1.
  const Line power = powers_of_two(times(magnitudes(x), line_of(-1.44269504f)));
  Line out;
  for (int i = 0; i < PARTS; i++) {
    const Floats small = power.part[i] / (1.0f + power.part[i]);
    out.part[i] = x.part[i] > 0.0f ? 1.0f - small : small;
  }
  return out;
}

// The first `count` of 16 numbers, and zeros.
template <typename Number>
static inline Line load_some(const Number* from, int64_t count) {
  if (count >= LINE) return load(from);
  Number some[LINE] = {};
  memcpy(some, from, sizeof(Number) * count);
  return load(some);
}

template <typename Number>
static inline void store_some(Number* to, const Line& line, int64_t count) {
  store(to, line, count < LINE ? int(count) : LINE);
}

// 1 / √(mean(x²) + eps)
template <typename Number>
static inline float inverse_root(const Number* x, int64_t size, float eps) {
  Line squares = line_of(0);
  for (int64_t i = 0; i < size; i += LINE) {
    const Line some = load_some(x + i, size - i);
    squares = multiply_add(some, some, squares);
  }
  return 1 / sqrtf(sum_of(squares) / size + eps);
}

// x · factor · weight
template <typename Number>
static void scale_numbers(const Number* x, const Number* weight, float factor, Number* y, int64_t size) {
  const Line all = line_of(factor);
  for (int64_t i = 0; i < size; i += LINE)
    store_some(y + i, times(times(load_some(x + i, size - i), all), load_some(weight + i, size - i)), size - i);
}

// x += y
template <typename Number>
static void add_numbers(Number* x, const Number* y, int64_t size) {
  for (int64_t i = 0; i < size; i += LINE) store_some(x + i, add(load_some(x + i, size - i), load_some(y + i, size - i)), size - i);
}

// Pairs (i, i + size / 2) of a head turned by their angles. Without a weight the head is not normalised.
template <typename Number>
static void turn_head(const Number* x, const Number* weight, float eps, const float* cosines, const float* sines,
                      Number* y, int64_t size) {
  const int64_t half = size / 2;
  const Line factor = line_of(weight != nullptr ? inverse_root(x, size, eps) : 1);
  for (int64_t i = 0; i < half; i += LINE) {
    Line a = times(load(x + i), factor), b = times(load(x + half + i), factor);
    if (weight != nullptr) {
      a = times(a, load(weight + i));
      b = times(b, load(weight + half + i));
    }
    const Line c = load(cosines + i), s = load(sines + i);
    store(y + i, multiply_add(a, c, times(times(b, s), line_of(-1))), LINE);
    store(y + half + i, multiply_add(b, c, times(a, s)), LINE);
  }
}

// silu(gate) · up
template <typename Number>
static void gate_numbers(const Number* gates, const Number* ups, Number* y, int64_t size) {
  for (int64_t i = 0; i < size; i += LINE) {
    const Line one = load_some(gates + i, size - i);
    store_some(y + i, times(times(one, sigmoid(one)), load_some(ups + i, size - i)), size - i);
  }
}
