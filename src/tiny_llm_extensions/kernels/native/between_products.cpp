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

template <typename Number>
static void normalize(const Number* x, const Number* weight, Number* y, int64_t rows, int64_t size, float eps, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (rows > 1)
  for (int64_t row = 0; row < rows; row++)
    scale_numbers(x + row * size, weight, inverse_root(x + row * size, size, eps), y + row * size, size);
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

template <typename Number>
struct Heads {
  const Number *x, *query_weight, *key_weight;  // x is (rows, heads + 2 · kv_heads, size)
  const float *cosines, *sines;                 // (rows, stride), of which the first size / 2 are read
  Number *query, *key, *value;                  // (rows, heads, size), and twice (rows, kv_heads, size)
  int64_t heads, kv_heads, size, stride;
  float eps;
};

template <typename Number>
static void split_row(const Heads<Number>& h, int64_t row) {
  const Number* x = h.x + row * (h.heads + 2 * h.kv_heads) * h.size;
  const float *cosines = h.cosines + row * h.stride, *sines = h.sines + row * h.stride;
  for (int64_t i = 0; i < h.heads; i++, x += h.size)
    turn_head(x, h.query_weight, h.eps, cosines, sines, h.query + (row * h.heads + i) * h.size, h.size);
  for (int64_t i = 0; i < h.kv_heads; i++, x += h.size)
    turn_head(x, h.key_weight, h.eps, cosines, sines, h.key + (row * h.kv_heads + i) * h.size, h.size);
  memcpy(h.value + row * h.kv_heads * h.size, x, sizeof(Number) * h.kv_heads * h.size);
}

template <typename Number>
static void split_heads(const Heads<Number>& h, int64_t rows, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (rows > 1)
  for (int64_t row = 0; row < rows; row++) split_row(h, row);
}

// silu(gate) · up
template <typename Number>
static void gate_numbers(const Number* gates, const Number* ups, Number* y, int64_t size) {
  for (int64_t i = 0; i < size; i += LINE) {
    const Line one = load_some(gates + i, size - i);
    store_some(y + i, times(times(one, sigmoid(one)), load_some(ups + i, size - i)), size - i);
  }
}

// The same of rows that hold first all gates and then all ups.
template <typename Number>
static void gate(const Number* x, Number* y, int64_t rows, int64_t size, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (rows > 1)
  for (int64_t row = 0; row < rows; row++)
    gate_numbers(x + row * 2 * size, x + row * 2 * size + size, y + row * size, size);
}

#define EXPORT(Number, name)                                                                                          \
  extern "C" int normalize_##name(const Number* x, const Number* weight, Number* y, int64_t rows, int64_t size,       \
                                  float eps, int threads) {                                                           \
    normalize(x, weight, y, rows, size, eps, threads);                                                                \
    return 0;                                                                                                         \
  }                                                                                                                   \
  extern "C" int split_heads_##name(const Number* x, const Number* query_weight, const Number* key_weight,            \
                                    const float* cosines, const float* sines, Number* query, Number* key,             \
                                    Number* value, int64_t rows, int64_t heads, int64_t kv_heads, int64_t size,       \
                                    int64_t stride, float eps, int threads) {                                         \
    const Heads<Number> h{x,   query_weight, key_weight, cosines, sines,    query, key,                               \
                          value, heads,      kv_heads,   size,    stride, eps};                                       \
    split_heads(h, rows, threads);                                                                                    \
    return 0;                                                                                                         \
  }                                                                                                                   \
  extern "C" int gate_##name(const Number* x, Number* y, int64_t rows, int64_t size, int threads) {                   \
    gate(x, y, rows, size, threads);                                                                                  \
    return 0;                                                                                                         \
  }
EXPORT(uint16_t, bf16)
EXPORT(float, float)
