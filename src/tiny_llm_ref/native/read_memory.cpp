// Reads an array once, as fast as memory delivers it: the roof of every kernel that reads its weights once. Given.
#include "lines.h"

constexpr int SUMS = 8;             // side by side: an addition need not wait for the one before
constexpr int64_t PIECE = 64 * 1024;  // numbers that one thread takes at a time

// Adds up whole pieces of numbers, so that the compiler cannot leave the reading out.
extern "C" int read_memory(const float* from, int64_t pieces, float* total, int threads) {
  float sum = 0;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(+ : sum)
  for (int64_t i = 0; i < pieces; i++) {
    Line sums[SUMS];
    for (int j = 0; j < SUMS; j++) sums[j] = line_of(0);
    for (const float* at = from + i * PIECE; at < from + (i + 1) * PIECE; at += SUMS * LINE)
      for (int j = 0; j < SUMS; j++) sums[j] = add(sums[j], load(at + j * LINE));
    for (int j = 0; j < SUMS; j++) sum += sum_of(sums[j]);
  }
  *total = sum;
  return 0;
}
