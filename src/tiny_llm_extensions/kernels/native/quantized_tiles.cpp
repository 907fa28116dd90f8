// y = x Wᵀ (+ bias) of many rows with a 4- or 8-bit matrix, with the arguments of the solution's kernel: by `matrix_unit.h`
// where there is such a unit, else by `quantized_tiles.h`, with that kernel's numbers for x in 16 bits. A matrix of 0 bits is
// one of `product.cpp`, which only the unit takes.
#include <limits>
#include <memory>

#include "unit.h"

namespace quantized {
#include "quantized_product.cpp"
}
namespace tiles {
#ifdef MATRIX_UNIT
#include "matrix_unit.h"
#else
#include "quantized_tiles.h"
#endif
}

extern "C" int takes_plain(int is_bf16, int64_t columns) { return tiles::takes_plain(is_bf16, columns); }

extern "C" int multiply_many(const void* x, const uint8_t* w, const void* constants, const float* bias, void* y,
                             int64_t rows, int64_t outputs, int64_t columns, int group, int bits, int is_bf16,
                             int type_of_constants, int x_bits, int threads) {
  const tiles::Tiles tiles{rows};
  const std::unique_ptr<Columns[]> rounded(new Columns[Columns::count(tiles.packed(columns))]);
  const std::unique_ptr<float[]> scales(new float[tiles.numbers(columns / group)]), sums(new float[tiles.numbers(columns / group)]);
  const quantized::QuantizedProduct p{x, w, constants, bias, y, rounded.get(), scales.get(), sums.get(), rows, outputs,
                                      columns, group, bits, type_of_constants, x_bits, bool(is_bf16)};
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(static)
    for (int64_t row = 0; row < rows; row++)
      if (is_bf16)
        tiles::round_groups(p, (const uint16_t*)x, row, 0, columns);
      else
        tiles::round_groups(p, (const float*)x, row, 0, columns);
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < tiles::pieces_of(p); i++) tiles::multiply_piece(p, tiles::piece_at(p, i));
  }
  return 0;
}
