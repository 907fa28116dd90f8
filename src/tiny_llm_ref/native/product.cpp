// y = x Wᵀ (+ bias) for a matrix W of bf16 or float32 numbers and any number of rows.
//
// W is packed in lines, in the order in which they are read: for each block of 16 outputs, for each column (of bf16:
// for each pair of columns), the numbers of the 16 outputs. So a row of x is multiplied without a sum across a line.
#include "lines.h"

// How many blocks of 16 outputs and rows of x a tile has: its sums stay in registers.
#ifndef BLOCKS_OF_A_TILE  // where wrong solutions are tested, whatever the processor is
#define BLOCKS_OF_A_TILE (WIDTH == 16 ? 4 : 1)
#endif
constexpr int BLOCKS = BLOCKS_OF_A_TILE;
template <typename Number>  // with AVX2, halves of bf16 pairs need registers too
constexpr int ROWS = WIDTH == 16 ? 6 : WIDTH == 8 ? (sizeof(Number) == 4 ? 6 : 4) : 2;

template <typename Number>
struct Product {
  const Number *x, *w;
  const float* bias;
  Number* y;
  int64_t rows, outputs, columns;

  static constexpr int COLUMNS = 4 / sizeof(Number);  // of each output in a line
  int64_t lines() const { return (columns + COLUMNS - 1) / COLUMNS; }
  int64_t blocks() const { return (outputs + LINE - 1) / LINE; }
  const Number* block(int64_t b) const { return w + b * lines() * LINE * COLUMNS; }
};

// sum += a line of W times the same columns of a row of x. The last of an odd number of bf16 columns has no partner.
// GIVEN: what differs between the two types.
static inline Line dot(const uint16_t* line, const uint16_t* x, bool is_last, const Line& sum) {
  return dot_pairs(bytes_at(line), is_last ? *x : pair_at(x), sum);
}

// GIVEN: as above, for lines of one column.
static inline Line dot(const float* line, const float* x, bool, const Line& sum) {
  return multiply_add(load(line), line_of(*x), sum);
}

// One row of x by one block of 16 outputs: y[row][16 b + o] = sum of x[row][k] · W[16 b + o][k], + bias[16 b + o].
template <typename Number>
static int multiply_line(const Product<Number>& p, int64_t row, int64_t b) {
  // TASK 4.1.1: multiply the row by each line of block b, and store the 16 sums.
  // A line has p.COLUMNS columns of all 16 outputs, so the sums of 16 outputs are one Line to the end.
  const Number *w = p.block(b), *x = p.x + row * p.columns;
  const int64_t whole = p.columns / p.COLUMNS;
  Line sum = line_of(0);
  for (int64_t k = 0; k < whole; k++) sum = dot(w + k * LINE * p.COLUMNS, x + k * p.COLUMNS, false, sum);
  if (whole < p.lines()) sum = dot(w + whole * LINE * p.COLUMNS, x + p.columns - 1, true, sum);
  store_outputs(p.y + row * p.outputs + b * LINE, sum, p.bias, b, p.outputs);
  return 0;
  // END TASK
}

// R rows of x from `row` on, by B whole blocks from block b on. Every line of W is loaded once for R rows, and every
// number of x once for B lines.
template <int B, int R, typename Number>
static int multiply_tile(const Product<Number>& p, int64_t row, int64_t b) {
  // TASK 4.1.2: multiply R rows by B blocks side by side, in R × B sums.
  // They stay in registers if every loop over r and i is unrolled, so their bounds are constants.
  const Number *w = p.block(b), *x = p.x + row * p.columns;
  const int64_t next = p.block(b + 1) - w, whole = p.columns / p.COLUMNS;
  Line sums[R][B];
  for (int r = 0; r < R; r++)
    for (int i = 0; i < B; i++) sums[r][i] = line_of(0);
  for (int64_t k = 0; k < p.lines(); k++, w += LINE * p.COLUMNS)
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
      for (int i = 0; i < B; i++)
        sums[r][i] = dot(w + i * next, x + r * p.columns + k * p.COLUMNS, k == whole, sums[r][i]);
  for (int r = 0; r < R; r++)
    for (int i = 0; i < B; i++)
      store_outputs(p.y + (row + r) * p.outputs + (b + i) * LINE, sums[r][i], p.bias, b + i, p.outputs);
  return 0;
  // END TASK
}

// The rows from `row` on by BLOCKS blocks, R at a time, and then the rows that are left.
template <int R, typename Number>
static int multiply_blocks(const Product<Number>& p, int64_t row, int64_t b) {
  int task = 0;
  for (; row + R <= p.rows; row += R)
    if constexpr (BLOCKS * R == 1)
      task = blank(task, multiply_line(p, row, b));
    else
      task = blank(task, multiply_tile<BLOCKS, R>(p, row, b));
  if constexpr (R > 1) task = blank(task, multiply_blocks<R - 1>(p, row, b));
  return task;
}

// All blocks, shared by the threads: in tiles, or one row by one block at a time.
template <typename Number>
static int multiply(const Product<Number>& p, int threads, bool in_tiles) {
  int task = 0;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(max : task)
  for (int64_t b = 0; b < p.blocks(); b += BLOCKS) {
    if (in_tiles && b + BLOCKS <= p.blocks())
      task = blank(task, multiply_blocks<ROWS<Number>>(p, 0, b));
    else  // also where fewer blocks are left than a tile has
      for (int64_t i = b; i < p.blocks() && i < b + BLOCKS; i++)
        for (int64_t row = 0; row < p.rows; row++) task = blank(task, multiply_line(p, row, i));
  }
  return task;
}

extern "C" int multiply_bf16(const uint16_t* x, const uint16_t* w, const float* bias, uint16_t* y, int64_t rows,
                             int64_t outputs, int64_t columns, int threads, int in_tiles) {
  return multiply(Product<uint16_t>{x, w, bias, y, rows, outputs, columns}, threads, in_tiles);
}

extern "C" int multiply_float(const float* x, const float* w, const float* bias, float* y, int64_t rows,
                              int64_t outputs, int64_t columns, int threads, int in_tiles) {
  return multiply(Product<float>{x, w, bias, y, rows, outputs, columns}, threads, in_tiles);
}
