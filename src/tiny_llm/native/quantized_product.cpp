// y = x Wᵀ (+ bias) for a matrix W of 4- or 8-bit numbers: W = scale · number + bias, with a scale and a bias for each
// group of 32, 64 or 128 columns. The rows of x are rounded to bytes first, with a scale for each group: then the
// products of a group are integers, and 64 of them take one or two instructions.
//
// W is packed in lines of 64 bytes: for each block of 16 outputs, for each 8 columns (of 4 bits: the first four are
// the lower halves of the bytes) or 4 columns (of 8 bits), byte 4 · output + column. The scales and biases of a block's
// group are two lines.
#include <memory>

#include "lines.h"

// Rows of x that share the lines which are loaded: their sums stay in registers.
constexpr int ROWS = WIDTH == 16 ? 8 : WIDTH == 8 ? 4 : 2;

// The largest group.
constexpr int MOST_COLUMNS = 128;

struct QuantizedProduct {
  const void* x;  // bf16 or float32, as y
  const uint8_t* w;
  const void* constants;  // (blocks, groups, 2, 16), bf16, float32 or float16
  const float* bias;
  void* y;
  int8_t* bytes;         // (rows, columns), x rounded: for each of its rows one row of bytes or, of two planes, two
  float *scales, *sums;  // (groups, rows): the bytes' scale, and it times the sum of the group's bytes
  int64_t rows, outputs, columns;
  int group, planes;
  bool is_bf16;

  int64_t groups() const { return columns / group; }
  int64_t blocks() const { return (outputs + LINE - 1) / LINE; }
};

// The largest magnitude of a group. As integers, the bits of magnitudes have the same order, and those of a NaN are the
// largest: a comparison of floats would not find it.
template <typename Number>
static float largest_magnitude(const Number* x, int group) {
  Words most[PARTS] = {};
  for (int i = 0; i < group; i += LINE) {
    const Line line = magnitudes(load(x + i));
    for (int k = 0; k < PARTS; k++) most[k] = (Words)line.part[k] > most[k] ? (Words)line.part[k] : most[k];
  }
  uint32_t words[LINE];
  memcpy(words, most, sizeof words);
  for (int half = LINE / 2; half > 0; half /= 2)
    for (int i = 0; i < half; i++) words[i] = words[i] > words[i + half] ? words[i] : words[i + half];
  float largest;
  memcpy(&largest, words, sizeof largest);
  return largest;
}

template <typename Number>
static void round_group(const Number* x, int group, int8_t* bytes, float* scale, float* sum) {
  const float largest = largest_magnitude(x, group);
  const Line inverse = line_of(largest > 1e-30f ? 127 / largest : 0);
  IntLine total = no_ints();
  for (int i = 0; i < group; i += LINE) {
    const IntLine rounded = nearest_ints(times(load(x + i), inverse));
    total = add(total, rounded);
    store_bytes(bytes + i, rounded);
  }
  *scale = largest / 127;
  *sum = *scale * sum_of(floats_of(total));
}

// A group by one or two planes. The second one rounds the remainder of the first, so that both together have 15 bits.
template <typename Number>
static void round_planes(const QuantizedProduct& p, const Number* x, int8_t* bytes, float* scale, float* sum) {
  round_group(x, p.group, bytes, scale, sum);
  if (p.planes == 1) return;
  float rest[MOST_COLUMNS];
  for (int i = 0; i < p.group; i++) rest[i] = float_of(x[i]) - *scale * bytes[i];
  round_group(rest, p.group, bytes + p.columns, scale + 1, sum + 1);
}

// Group i of all rows of x: first those of the first columns.
static void round_group(const QuantizedProduct& p, int64_t i) {
  const int64_t rows = p.rows / p.planes, row = i % rows, column = i / rows * p.group;
  const int64_t from = row * p.columns + column, at = i / rows * p.rows + row * p.planes;
  int8_t* bytes = p.bytes + row * p.planes * p.columns + column;
  if (p.is_bf16)
    round_planes(p, (const uint16_t*)p.x + from, bytes, p.scales + at, p.sums + at);
  else
    round_planes(p, (const float*)p.x + from, bytes, p.scales + at, p.sums + at);
}

// sums[r] += the integer products of one group: `group` columns of R rows, by one block of 16 outputs.
//
// w: the group's lines. x: the group's bytes of the first row; those of the next row are `columns` bytes further.
template <int BITS, int R>
static inline int multiply_group(const uint8_t* w, const int8_t* x, int64_t columns, int group, IntLine* sums) {
  // TASK 4.1.3: add the products of a group to `sums`, four columns of 16 outputs at a time.
  // Of 4 bits a line of 64 bytes has eight columns, of 8 bits four: two dots for every eight columns either way.
  return 3;
  // END TASK
}

static void finish(const QuantizedProduct& p, int64_t row, int64_t b, const Line& sum) {
  const int64_t at = row * p.outputs + b * LINE;
  if (p.is_bf16)
    store_outputs((uint16_t*)p.y + at, sum, p.bias, b, p.outputs);
  else
    store_outputs((float*)p.y + at, sum, p.bias, b, p.outputs);
}

// sums += the integer products of a group, in the units of the matrix and of R rows.
template <int R, typename Constant>
static inline void add_group(const Constant* constants, const float* scales, const float* x_sums, const IntLine* dots,
                             Line* sums) {
  const Line scale = constants_at(constants), bias = constants_at(constants + LINE);
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
    sums[r] = multiply_add(times(scale, floats_of(dots[r])), line_at(scales + r), sums[r]);
    sums[r] = multiply_add(bias, line_at(x_sums + r), sums[r]);
  }
}

static inline void prefetch(const void* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch((const char*)from + i);
}

// R rows by one block, group after group.
template <int BITS, typename Constant, int R>
static int multiply_rows(const QuantizedProduct& p, int64_t row, int64_t b) {
  const int64_t step = int64_t(p.group) * LINE * BITS / 8, groups = p.groups();
  const uint8_t* w = p.w + b * groups * step;
  const Constant* constants = (const Constant*)p.constants + b * groups * 2 * LINE;
  // While the last rows of a block are computed, memory can deliver the next block. Without this the processor waits at
  // every page of 4 KiB, where its own prefetching ends.
  const bool is_last = row + R == p.rows && b + 1 < p.blocks();
  Line sums[R];
  for (int r = 0; r < R; r++) sums[r] = line_of(0);
  int task = 0;
  for (int64_t g = 0; g < groups; g++, w += step, constants += 2 * LINE) {
    if (is_last) {
      prefetch(w + groups * step, step);
      prefetch(constants + groups * 2 * LINE, 2 * LINE * sizeof(Constant));
    }
    IntLine dots[R];
    for (int r = 0; r < R; r++) dots[r] = no_ints();
    task = blank(task, multiply_group<BITS, R>(w, p.bytes + row * p.columns + g * p.group, p.columns, p.group, dots));
    const int64_t at = g * p.rows + row;
    add_group<R>(constants, p.scales + at, p.sums + at, dots, sums);
  }
  for (int r = 0; r < R; r += p.planes)
    finish(p, (row + r) / p.planes, b, r + 1 < R && p.planes == 2 ? add(sums[r], sums[r + 1]) : sums[r]);
  return task;
}

// The rows from `row` on by one block, R at a time, and then the rows that are left. ROWS is even, and so is the number
// of rows of two planes: both of a row come together.
template <int BITS, typename Constant, int R>
static int multiply_block(const QuantizedProduct& p, int64_t row, int64_t b) {
  int task = 0;
  for (; row + R <= p.rows; row += R) task = blank(task, multiply_rows<BITS, Constant, R>(p, row, b));
  if constexpr (R > 1) task = blank(task, multiply_block<BITS, Constant, R - 1>(p, row, b));
  return task;
}

// Groups that one thread rounds sooner than others wake up.
constexpr int64_t FEW_GROUPS = 256;

template <int BITS, typename Constant>
static int multiply(const QuantizedProduct& p, int threads) {
  const int64_t count = p.rows / p.planes * p.groups();
#pragma omp parallel for num_threads(threads) schedule(static) if (count > FEW_GROUPS)
  for (int64_t i = 0; i < count; i++) round_group(p, i);
  int task = 0;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(max : task)
  for (int64_t b = 0; b < p.blocks(); b++) task = blank(task, multiply_block<BITS, Constant, ROWS>(p, 0, b));
  return task;
}

// Types of constants, in the order of `CONSTANTS` in quantized_product.py.
enum { OF_BF16, OF_FLOAT32, OF_FLOAT16 };

template <int BITS>
static int multiply(const QuantizedProduct& p, int constants, int threads) {
  if (constants == OF_FLOAT16) return multiply<BITS, Float16>(p, threads);
  return constants == OF_BF16 ? multiply<BITS, uint16_t>(p, threads) : multiply<BITS, float>(p, threads);
}

extern "C" int multiply_quantized(const void* x, const uint8_t* w, const void* constants, const float* bias, void* y,
                                  int64_t rows, int64_t outputs, int64_t columns, int group, int bits, int is_bf16,
                                  int type_of_constants, int planes, int threads) {
  rows *= planes;
  const int64_t count = rows * (columns / group);
  const std::unique_ptr<int8_t[]> bytes(new int8_t[rows * columns]);
  const std::unique_ptr<float[]> scales(new float[2 * count]);
  const QuantizedProduct p{x,    w,       constants, bias,  y,           bytes.get(), scales.get(), scales.get() + count,
                           rows, outputs, columns,   group, planes, bool(is_bf16)};
  return bits == 4 ? multiply<4>(p, type_of_constants, threads) : multiply<8>(p, type_of_constants, threads);
}
