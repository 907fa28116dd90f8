// Products of numbers that stay in registers: the roof of products of many rows with quantised matrices. Given.
#include "unit.h"

#ifdef MATRIX_UNIT
// Operations of a round: four products of 16 rows of 32 numbers by 16 outputs.
constexpr int64_t OPERATIONS = 4 * 2 * 16 * 32 * 16;

static void multiply(int64_t rounds) {
  const MatrixUnit unit;
  for (int64_t i = 0; i < rounds; i++) {
    _tile_dpbf16ps(4, 0, 2);
    _tile_dpbf16ps(5, 0, 3);
    _tile_dpbf16ps(6, 1, 2);
    _tile_dpbf16ps(7, 1, 3);
  }
}
#else
constexpr int ROWS = 6, COLUMNS = 2;  // 12 sums hide the latency of an instruction
constexpr int64_t OPERATIONS = ROWS * COLUMNS * 2 * 2 * WIDTH;

// The pairs of a row are others in every round, so that the compiler cannot multiply them once, and in memory: an
// instruction that makes a vector of a register would take the place of a product.
static void multiply(int64_t rounds) {
  Ints sums[ROWS][COLUMNS] = {};
  const Words pairs[COLUMNS] = {Words{} + 1, Words{} + 2};
  uint32_t x[8 + ROWS];
  for (int r = 0; r < 8 + ROWS; r++) x[r] = uint32_t(rounds + r);
  for (int64_t i = 0; i < rounds; i++)
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
      for (int c = 0; c < COLUMNS; c++) sums[r][c] = add_pairs(pairs[c], x[i % 8 + r], sums[r][c]);
  volatile int32_t kept = 0;
  for (const auto& row : sums)
    for (const Ints& sum : row) kept = sum[0];
  (void)kept;
}
#endif

// `rounds` of them in each thread. Returns the operations of all.
extern "C" int64_t multiply_in_registers(int64_t rounds, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int i = 0; i < threads; i++) multiply(rounds);
  return rounds * threads * OPERATIONS;
}
