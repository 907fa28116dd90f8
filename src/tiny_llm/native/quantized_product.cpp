// y = x Wᵀ (+ bias) for a matrix W of 4- or 8-bit numbers: W = scale · number + bias, with a scale and a bias for each
// group of 32, 64 or 128 columns. The rows of x are rounded to 8 or 16 bits first, with a scale for each group: then the
// products of a group are integers, and 64 of them take one or two instructions.
//
// W is packed in lines of 64 bytes: for each block of 16 outputs, for each 8 columns (of 4 bits: the first four are
// the lower halves of the bytes) or 4 columns (of 8 bits), byte 4 · output + column. The scales and biases of a block's
// group are two lines.
#include <limits>
#include <memory>

#include "lines.h"

// Rows of x that share the lines which are loaded: their sums stay in registers.
constexpr int ROWS = WIDTH == 16 ? 8 : WIDTH == 8 ? 4 : 2;
// In 16 bits AVX2 takes a line apart by more instructions: for eight rows that pays, although sums go to memory.
constexpr int WIDE_ROWS = WIDTH == 8 ? 8 : ROWS;

// The largest group: its sum of 128 · 255 · 32767 fits into 32 bits.
constexpr int MOST_COLUMNS = 128;

struct QuantizedProduct {
  const void* x;  // bf16 or float32, as y
  const uint8_t* w;
  const void* constants;  // (blocks, groups, 2, 16), bf16, float32 or float16
  const float* bias;
  void* y;
  void* rounded;         // (rows, columns), int8_t or int16_t: x as integers
  float *scales, *sums;  // (groups, rows): the integers' scale, and it times the sum of the group's integers
  int64_t rows, outputs, columns;
  int group, bits, type_of_constants, x_bits;
  bool is_bf16;

  int64_t groups() const { return columns / group; }
  int64_t blocks() const { return (outputs + LINE - 1) / LINE; }
};

// The largest magnitude of a group. As integers, the bits of magnitudes have the same order, and those of a NaN are the
// largest: a comparison of floats would not find it.
template <typename Number>
static float largest_magnitude(const Number* x, int group) {
  IntLine most = no_ints();
  for (int i = 0; i < group; i += LINE) {
    const Line line = magnitudes(load(x + i));
    for (int k = 0; k < PARTS; k++) most.part[k] = (Ints)line.part[k] > most.part[k] ? (Ints)line.part[k] : most.part[k];
  }
  const int32_t bits = largest_of(most);
  float largest;
  memcpy(&largest, &bits, sizeof largest);
  return largest;
}

template <typename Number, typename Rounded>
static void round_group(const Number* x, int group, Rounded* rounded, float* scale, float* sum) {
  constexpr int MOST = std::numeric_limits<Rounded>::max();
  const float largest = largest_magnitude(x, group);
  const Line inverse = line_of(largest > 1e-30f ? MOST / largest : 0);
  IntLine total = no_ints();
  for (int i = 0; i < group; i += LINE) {
    const IntLine line = nearest_ints(times(load(x + i), inverse));
    total = add(total, line);
    store_ints(rounded + i, line);
  }
  *scale = largest / MOST;
  *sum = *scale * sum_of(floats_of(total));
}

template <typename Number>
static void round_group(const QuantizedProduct& p, const Number* x, int64_t i) {
  const int64_t at = i % p.rows * p.columns + i / p.rows * p.group;
  if (p.x_bits == 8)
    round_group(x + at, p.group, (int8_t*)p.rounded + at, p.scales + i, p.sums + i);
  else
    round_group(x + at, p.group, (int16_t*)p.rounded + at, p.scales + i, p.sums + i);
}

// Group i of all rows of x: first those of the first columns.
static void round_group(const QuantizedProduct& p, int64_t i) {
  if (p.is_bf16)
    round_group(p, (const uint16_t*)p.x, i);
  else
    round_group(p, (const float*)p.x, i);
}

// sums[r] += the integer products of one group: `group` columns of R rows, by one block of 16 outputs.
//
// w: the group's lines. x: the group's integers of the first row, in 8 or 16 bits; those of the next row are `columns`
// further.
template <int BITS, int R, typename Rounded>
static inline int multiply_group(const uint8_t* w, const Rounded* x, int64_t columns, int group, IntLine* sums) {
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
__attribute__((always_inline)) static inline void add_group(const Constant* constants, const float* scales, const float* x_sums, const IntLine* dots,
                             Line* sums) {
  const Line scale = constants_at(constants), bias = constants_at(constants + LINE);
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
    sums[r] = multiply_add(times(scale, floats_of(dots[r])), line_of(scales[r]), sums[r]);
    sums[r] = multiply_add(bias, line_of(x_sums[r]), sums[r]);
  }
}

static inline void prefetch(const void* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch((const char*)from + i);
}

// R rows by one block, group after group.
template <int BITS, typename Constant, typename Rounded, int R>
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
    const Rounded* x = (const Rounded*)p.rounded + row * p.columns + g * p.group;
    task = blank(task, multiply_group<BITS, R>(w, x, p.columns, p.group, dots));
    const int64_t at = g * p.rows + row;
    add_group<R>(constants, p.scales + at, p.sums + at, dots, sums);
  }
  for (int r = 0; r < R; r++) finish(p, row + r, b, sums[r]);
  return task;
}

// The rows from `row` on by one block, R at a time, and then the rows that are left.
template <int BITS, typename Constant, typename Rounded, int R>
static int multiply_block(const QuantizedProduct& p, int64_t row, int64_t b) {
  int task = 0;
  for (; row + R <= p.rows; row += R) task = blank(task, multiply_rows<BITS, Constant, Rounded, R>(p, row, b));
  if constexpr (R > 1) task = blank(task, multiply_block<BITS, Constant, Rounded, (R > ROWS ? ROWS : R - 1)>(p, row, b));
  return task;
}

template <int BITS, typename Constant>
static int multiply_block(const QuantizedProduct& p, int64_t b) {
  return p.x_bits == 8 ? multiply_block<BITS, Constant, int8_t, ROWS>(p, 0, b)
                       : multiply_block<BITS, Constant, int16_t, WIDE_ROWS>(p, 0, b);
}

// Types of constants, in the order of `CONSTANTS` in quantized_product.py.
enum { OF_BF16, OF_FLOAT32, OF_FLOAT16 };

template <int BITS>
static int multiply_block(const QuantizedProduct& p, int64_t b) {
  if (p.type_of_constants == OF_FLOAT16) return multiply_block<BITS, Float16>(p, b);
  return p.type_of_constants == OF_BF16 ? multiply_block<BITS, uint16_t>(p, b) : multiply_block<BITS, float>(p, b);
}

// All rows by one block.
static int multiply_block(const QuantizedProduct& p, int64_t b) {
  return p.bits == 4 ? multiply_block<4>(p, b) : multiply_block<8>(p, b);
}

// Groups that one thread rounds sooner than others wake up.
constexpr int64_t FEW_GROUPS = 256;

extern "C" int multiply_quantized(const void* x, const uint8_t* w, const void* constants, const float* bias, void* y,
                                  int64_t rows, int64_t outputs, int64_t columns, int group, int bits, int is_bf16,
                                  int type_of_constants, int x_bits, int threads) {
  const int64_t count = rows * (columns / group);
  const std::unique_ptr<int16_t[]> rounded(new int16_t[rows * columns]);
  const std::unique_ptr<float[]> scales(new float[count]), sums(new float[count]);
  const QuantizedProduct p{x,       w,     constants, bias, y,      rounded.get(), scales.get(), sums.get(), rows, outputs,
                           columns, group, bits,      type_of_constants, x_bits, bool(is_bf16)};
#pragma omp parallel for num_threads(threads) schedule(static) if (count > FEW_GROUPS)
  for (int64_t i = 0; i < count; i++) round_group(p, i);
  int task = 0;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(max : task)
  for (int64_t b = 0; b < p.blocks(); b++) task = blank(task, multiply_block(p, b));
  return task;
}
