// Reads an array once, as fast as memory delivers it: the roof of every kernel that reads its weights once. Given.
#include "lines.h"

constexpr int STREAMS = 8;            // read side by side: while one waits at the end of a page, the others go on
constexpr int64_t PIECE = 64 * 1024;  // numbers that one thread takes at a time

// Adds up whole pieces of numbers, so that the compiler cannot leave the reading out.
extern "C" int read_memory(const float* from, int64_t pieces, float* total, int threads) {
  float sum = 0;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(+ : sum)
  for (int64_t i = 0; i < pieces; i++) {
    constexpr int64_t LENGTH = PIECE / STREAMS;
    Line sums[STREAMS];
    for (int j = 0; j < STREAMS; j++) sums[j] = line_of(0);
    for (const float* at = from + i * PIECE; at < from + i * PIECE + LENGTH; at += LINE)
      for (int j = 0; j < STREAMS; j++) sums[j] = add(sums[j], load(at + j * LENGTH));
    for (int j = 0; j < STREAMS; j++) sum += sum_of(sums[j]);
  }
  *total = sum;
  return 0;
}
