// y = x Wᵀ (+ bias) for a matrix W of 4- or 8-bit numbers: W = scale · number + bias, with a scale and a bias for each
// group of 32, 64 or 128 columns. The rows of x are rounded to bytes first, with a scale for each group: then the
// products of a group are integers, and 64 of them take one or two instructions.
//
// W is packed in lines of 64 bytes: for each block of 16 outputs, for each 8 columns (of 4 bits: the first four are
// the lower halves of the bytes) or 4 columns (of 8 bits), byte 4 · output + column. The scales and biases of a block's
// group are two lines.
#include "lines.h"

// Rows of x that share the lines which are loaded: their sums stay in registers.
constexpr int ROWS = WIDTH == 16 ? 8 : WIDTH == 8 ? 4 : 2;

struct QuantizedProduct {
  const void* x;  // bf16 or float32, as y
  const uint8_t* w;
  const void* constants;  // (blocks, groups, 2, 16)
  const float* bias;
  void* y;
  int8_t* bytes;         // (rows, columns), x rounded
  float *scales, *sums;  // (rows, groups): the bytes' scale, and it times the sum of the group's bytes
  int64_t rows, outputs, columns;
  int group;
  bool is_bf16;

  int64_t groups() const { return columns / group; }
  int64_t blocks() const { return (outputs + LINE - 1) / LINE; }
};

template <typename Number>
static void round_group(const Number* x, int group, int8_t* bytes, float* scale, float* sum) {
  Line most = line_of(0), nothing = line_of(0);
  for (int i = 0; i < group; i += LINE) {
    most = larger(most, magnitudes(load(x + i)));
    nothing = multiply_add(load(x + i), line_of(0), nothing);  // not 0 if x has a NaN, which no comparison finds
  }
  const float largest = largest_of(most) + sum_of(nothing);
  const Line inverse = line_of(largest > 1e-30f ? 127 / largest : 0);
  IntLine total = no_ints();
  for (int i = 0; i < group; i += LINE) {
    const IntLine rounded = nearest_ints(times(load(x + i), inverse));
    total = add(total, rounded);
    store_bytes(bytes + i, rounded);
  }
  *scale = largest / 127;
  *sum = *scale * sum_of(total);
}

static void round_group(const QuantizedProduct& p, int64_t i) {
  int8_t* bytes = p.bytes + i * p.group;
  if (p.is_bf16)
    round_group((const uint16_t*)p.x + i * p.group, p.group, bytes, p.scales + i, p.sums + i);
  else
    round_group((const float*)p.x + i * p.group, p.group, bytes, p.scales + i, p.sums + i);
}

// Integer products of one group: R rows, `columns` bytes apart, by one block of 16 outputs.
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

// R rows by one block, group after group.
template <int BITS, typename Constant, int R>
static int multiply_rows(const QuantizedProduct& p, int64_t row, int64_t b) {
  const int64_t step = int64_t(p.group) * LINE * BITS / 8, groups = p.groups();
  const uint8_t* w = p.w + b * groups * step;
  const Constant* constant = (const Constant*)p.constants + b * groups * 2 * LINE;
  Line sums[R];
  for (int r = 0; r < R; r++) sums[r] = line_of(0);
  int task = 0;
  for (int64_t g = 0; g < groups; g++, w += step, constant += 2 * LINE) {
    IntLine dots[R];
    for (int r = 0; r < R; r++) dots[r] = no_ints();
    task = blank(task, multiply_group<BITS, R>(w, p.bytes + row * p.columns + g * p.group, p.columns, p.group, dots));
    const Line scale = load(constant), bias = load(constant + LINE);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const int64_t at = (row + r) * groups + g;
      sums[r] = multiply_add(times(scale, floats_of(dots[r])), line_of(p.scales[at]), sums[r]);
      sums[r] = multiply_add(bias, line_of(p.sums[at]), sums[r]);
    }
  }
  for (int r = 0; r < R; r++) finish(p, row + r, b, sums[r]);
  return task;
}

// The rows from `row` on by one block, R at a time, and then the rows that are left.
template <int BITS, typename Constant, int R>
static int multiply_block(const QuantizedProduct& p, int64_t row, int64_t b) {
  int task = 0;
  for (; row + R <= p.rows; row += R) task = blank(task, multiply_rows<BITS, Constant, R>(p, row, b));
  if constexpr (R > 1) task = blank(task, multiply_block<BITS, Constant, R - 1>(p, row, b));
  return task;
}

template <int BITS, typename Constant>
static int multiply(const QuantizedProduct& p, int threads) {
  int task = 0;
#pragma omp parallel num_threads(threads) reduction(max : task)
  {
#pragma omp for schedule(static)
    for (int64_t i = 0; i < p.rows * p.groups(); i++) round_group(p, i);
#pragma omp for schedule(static)
    for (int64_t b = 0; b < p.blocks(); b++) task = blank(task, multiply_block<BITS, Constant, ROWS>(p, 0, b));
  }
  return task;
}

extern "C" int multiply_quantized(const void* x, const uint8_t* w, const void* constants, const float* bias, void* y,
                                  int8_t* bytes, float* scales, float* sums, int64_t rows, int64_t outputs,
                                  int64_t columns, int group, int bits, int is_bf16, int are_constants_bf16,
                                  int threads) {
  const QuantizedProduct p{x,    w,       constants, bias,  y,           bytes, scales, sums,
                           rows, outputs, columns,   group, bool(is_bf16)};
  if (bits == 4) return are_constants_bf16 ? multiply<4, uint16_t>(p, threads) : multiply<4, float>(p, threads);
  return are_constants_bf16 ? multiply<8, uint16_t>(p, threads) : multiply<8, float>(p, threads);
}
