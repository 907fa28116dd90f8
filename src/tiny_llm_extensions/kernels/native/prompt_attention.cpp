// Attention of a chunk of one prompt over all tokens before it and itself, over keys and values in their pages.
//
// Both products of attention are like those of a layer: the scores are a product with the keys, whose outputs are
// tokens, and the sums are one with the values, whose columns are tokens. So keys and values are packed in lines first,
// once for all queries that share them. The softmax is online (Day 2.4), in float32, some tokens at a time.
#include "kept.h"
#include "unit.h"

#ifdef MATRIX_UNIT
constexpr bool HAS_UNIT = true;
#else
constexpr bool HAS_UNIT = false;
#endif
constexpr int BLOCKS = WIDTH == 16 ? 4 : 1;  // lines that are multiplied together, by `Chunk::ROWS` queries
constexpr int TOKENS = 256;     // that one round of the online softmax takes
constexpr int ALIGNED = 32;     // tokens, of which the packed ones are a multiple
constexpr int MOST_SIZE = 256;  // of a head

template <typename Number>
struct Chunk {
  const Number* query;                  // (rows, heads, size)
  Rows<Number> keys, values;            // of (slots, kv_heads)
  const int64_t* slots;                 // (tokens): of the whole text, the chunk's own tokens last
  Number* out;                          // (rows, heads, size)
  Number *packed_keys, *packed_values;  // scratch: (kv_heads, padded, size) each
  int64_t rows, tokens, heads, kv_heads, size, window;
  float scale;

  static constexpr int COLUMNS = 4 / sizeof(Number);  // of each output in a line
  // Queries whose sums stay in registers; with AVX2, halves of bf16 pairs need registers too.
  static constexpr int ROWS = WIDTH == 16 ? 6 : WIDTH == 8 ? (sizeof(Number) == 4 ? 6 : 4) : 2;
  int64_t queries() const { return heads / kv_heads; }
  int64_t padded() const { return (tokens + ALIGNED - 1) / ALIGNED * ALIGNED; }
  bool in_unit() const { return HAS_UNIT && size % ALIGNED == 0; }
  // A token sees the tokens up to its own place, and with a window not those that are too far before it.
  int64_t last(int64_t row) const { return tokens - rows + row; }
  int64_t first(int64_t row) const { return window > 0 && last(row) >= window ? last(row) - window + 1 : 0; }
  int64_t pieces_to_pack() const { return kv_heads * (padded() / LINE); }
  int64_t rows_of_piece() const { return in_unit() ? ALIGNED : ROWS; }
  int64_t pieces() const { return kv_heads * ((rows * queries() + rows_of_piece() - 1) / rows_of_piece()); }
  const Number* key_lines(int64_t kv_head, int64_t token) const { return packed_keys + (kv_head * padded() + token) * size; }
  const Number* value_lines(int64_t kv_head, int64_t block, int64_t token) const {
    return packed_values + ((kv_head * size / LINE + block) * padded() + token) * LINE;
  }
};

// Keys of 16 tokens: for each pair of columns (of float32: for each column) those of all tokens. Values of 16 tokens:
// for each block of 16 columns, pair of tokens by pair of tokens. Tokens that are not there are zeros.
template <typename Number>
static void pack_tokens(const Chunk<Number>& c, int64_t kv_head, int64_t token) {
  constexpr int C = Chunk<Number>::COLUMNS;
  const Number zeros[MOST_SIZE] = {};
  Number key_room[MOST_SIZE], value_room[MOST_SIZE];
  Number* keys = (Number*)c.key_lines(kv_head, token);
  for (int t = 0; t < LINE; t++) {
    const bool is_there = token + t < c.tokens;
    const int64_t row = is_there ? c.slots[token + t] * c.kv_heads + kv_head : 0;
    const Number* key = is_there ? numbers_of(c.keys, row, key_room) : zeros;
    const Number* value = is_there ? numbers_of(c.values, row, value_room) : zeros;
    for (int64_t i = 0; i < c.size; i += C)
      for (int j = 0; j < C; j++) keys[(i / C * LINE + t) * C + j] = key[i + j];
    for (int64_t b = 0; b < c.size / LINE; b++) {
      Number* values = (Number*)c.value_lines(kv_head, b, token) + t / C * LINE * C + t % C;
      for (int i = 0; i < LINE; i++) values[i * C] = value[b * LINE + i];
    }
  }
}

static inline Line dot(const uint16_t* line, const uint16_t* x, const Line& sum) {
  return dot_pairs(bytes_at(line), pair_at(x), sum);
}

static inline Line dot(const float* line, const float* x, const Line& sum) {
  return multiply_add(load(line), line_of(*x), sum);
}

// sums (R, B) += R rows of x by B blocks of lines, which are `next` numbers apart.
template <int B, int R, typename Number>
static inline void add_products(const Number* x, int64_t stride, const Number* w, int64_t next, int64_t columns,
                                Line (&sums)[R][B]) {
  constexpr int C = Chunk<Number>::COLUMNS;
  for (int64_t k = 0; k < columns; k += C)
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
      for (int i = 0; i < B; i++) sums[r][i] = dot(w + i * next + k * LINE, x + r * stride + k, sums[r][i]);
}

// What R queries of one head of keys know so far: the weighted sum of values, the largest score and the sum of weights.
template <int R, typename Number>
struct Queries {
  static constexpr int ROWS = R;
  Number query[R][MOST_SIZE], weights[R][TOKENS];
  float scores[R][TOKENS], sum[R][MOST_SIZE], most[R], total[R];
  int64_t row[R];

  void set_query(int r, const Number* x, int64_t size) { memcpy(query[r], x, sizeof(Number) * size); }
  void set_weights(int r, int t, const Line& line) { store(weights[r] + t, line, LINE); }
};

#include "unit_attention.h"

template <int B, int R, typename Number>
static void score_blocks(const Chunk<Number>& c, int64_t kv_head, int64_t token, int64_t at, Queries<R, Number>& q) {
  Line sums[R][B] = {};
  add_products<B, R>(q.query[0], MOST_SIZE, c.key_lines(kv_head, token + at), c.size * LINE, c.size, sums);
  for (int r = 0; r < R; r++)
    for (int i = 0; i < B; i++) store(q.scores[r] + at + i * LINE, sums[r][i], LINE);
}

// The online softmax: the weights of some tokens, 0 where a query does not see one.
template <typename Number, typename SomeQueries>
static void weigh(const Chunk<Number>& c, int64_t token, int count, SomeQueries& q) {
  const Line scale = line_of(c.scale * 1.44269504f);  // 2^(x · log2 e) is e^x
  for (int r = 0; r < q.ROWS; r++) {
    const int64_t first = c.first(q.row[r]) - token, last = c.last(q.row[r]) - token;
    for (int64_t t = 0; t < first && t < count; t++) q.scores[r][t] = -INFINITY;
    for (int64_t t = last < 0 ? 0 : last + 1; t < count; t++) q.scores[r][t] = -INFINITY;
    Line largest = line_of(q.most[r]);
    for (int t = 0; t < count; t += LINE) largest = larger(times(load(q.scores[r] + t), scale), largest);
    const float most = largest_of(largest), shrink = most == -INFINITY ? 1 : exp2f(q.most[r] - most);
    const Line minus = line_of(most == -INFINITY ? 0 : -most);  // nothing seen yet: the weights are 0
    Line total = line_of(0);
    for (int t = 0; t < count; t += LINE) {
      const Line weights = powers_of_two(multiply_add(load(q.scores[r] + t), scale, minus));
      total = add(total, weights);
      q.set_weights(r, t, weights);
    }
    q.most[r] = most;
    q.total[r] = q.total[r] * shrink + sum_of(total);
    for (int64_t i = 0; i < c.size; i += LINE) store(q.sum[r] + i, times(load(q.sum[r] + i), line_of(shrink)), LINE);
  }
}

template <int B, int R, typename Number>
static void add_blocks(const Chunk<Number>& c, int64_t kv_head, int64_t token, int count, int64_t block,
                       Queries<R, Number>& q) {
  Line sums[R][B];
  for (int r = 0; r < R; r++)
    for (int i = 0; i < B; i++) sums[r][i] = load(q.sum[r] + (block + i) * LINE);
  const Number* values = c.value_lines(kv_head, block, token);
  add_products<B, R>(q.weights[0], TOKENS, values, c.padded() * LINE, count, sums);
  for (int r = 0; r < R; r++)
    for (int i = 0; i < B; i++) store(q.sum[r] + (block + i) * LINE, sums[r][i], LINE);
}

// `work(i)` for all i in steps of BLOCKS, and then what is left one by one.
template <typename Work, typename Rest>
static inline void in_blocks(int64_t count, Work work, Rest rest) {
  int64_t i = 0;
  for (; i + BLOCKS <= count; i += BLOCKS) work(i);
  for (; i < count; i++) rest(i);
}

template <int R, typename Number>
static void score(const Chunk<Number>& c, int64_t kv_head, int64_t token, int count, Queries<R, Number>& q) {
  in_blocks(count / LINE, [&](int64_t i) { score_blocks<BLOCKS>(c, kv_head, token, i * LINE, q); },
            [&](int64_t i) { score_blocks<1>(c, kv_head, token, i * LINE, q); });
}

template <int R, typename Number>
static void add_values(const Chunk<Number>& c, int64_t kv_head, int64_t token, int count, Queries<R, Number>& q) {
  in_blocks(c.size / LINE, [&](int64_t b) { add_blocks<BLOCKS>(c, kv_head, token, count, b, q); },
            [&](int64_t b) { add_blocks<1>(c, kv_head, token, count, b, q); });
}

// A tile of queries, numbered by row and then by head, from query `from` on. Where the tile has more than are left, it
// computes the last one several times.
template <typename SomeQueries, typename Number>
static void attend_tile(const Chunk<Number>& c, int64_t kv_head, int64_t from) {
  SomeQueries q;
  Number* out[q.ROWS];
  for (int r = 0; r < q.ROWS; r++) {
    const int64_t number = from + r < c.rows * c.queries() ? from + r : c.rows * c.queries() - 1;
    q.row[r] = number / c.queries();
    const int64_t at = (q.row[r] * c.heads + kv_head * c.queries() + number % c.queries()) * c.size;
    out[r] = c.out + at;
    q.set_query(r, c.query + at, c.size);
    memset(q.sum[r], 0, sizeof(float) * c.size);
    q.most[r] = -INFINITY;
    q.total[r] = 0;
  }
  const int64_t end = c.last(q.row[q.ROWS - 1]) + 1;
  for (int64_t token = c.first(q.row[0]) / ALIGNED * ALIGNED; token < end; token += TOKENS) {
    const int count = int(((end - token < TOKENS ? end - token : TOKENS) + ALIGNED - 1) / ALIGNED) * ALIGNED;
    score(c, kv_head, token, count, q);
    weigh(c, token, count, q);
    add_values(c, kv_head, token, count, q);
  }
  for (int r = 0; r < q.ROWS; r++)
    for (int64_t i = 0; i < c.size; i += LINE)
      store(out[r] + i, times(load(q.sum[r] + i), line_of(1 / q.total[r])), LINE);
}

// Packs the tokens of one of `pieces_to_pack`.
template <typename Number>
static void pack_piece(const Chunk<Number>& c, int64_t i) {
  const int64_t kv_head = i % c.kv_heads, token = i / c.kv_heads * LINE;
#ifdef MATRIX_UNIT
  if (c.in_unit()) return pack_in_tiles(c, kv_head, token);
#endif
  pack_tokens(c, kv_head, token);
}

// Computes one of `pieces`. The last rows see the most tokens and come first, so that threads finish together.
template <typename Number>
static void attend_piece(const Chunk<Number>& c, int64_t i) {
  const int64_t place = c.pieces() - 1 - i, kv_head = place % c.kv_heads, from = place / c.kv_heads * c.rows_of_piece();
#ifdef MATRIX_UNIT
  if (c.in_unit()) {
    const MatrixUnit unit;
    return attend_tile<UnitQueries<Number>>(c, kv_head, from);
  }
#endif
  attend_tile<Queries<Chunk<Number>::ROWS, Number>>(c, kv_head, from);
}

template <typename Number>
static int attend(const Chunk<Number>& c, int threads) {
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(static)
    for (int64_t i = 0; i < c.pieces_to_pack(); i++) pack_piece(c, i);
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < c.pieces(); i++) attend_piece(c, i);
  }
  return 0;
}

template <typename Number>
static int attend_call(const void* query, const void* keys, const void* key_scales, const void* values,
                       const void* value_scales, const int64_t* slots, void* out, void* packed_keys, void* packed_values,
                       int64_t rows, int64_t tokens, int64_t heads, int64_t kv_heads, int64_t size, int64_t window,
                       float scale, int threads) {
  const Rows<Number> k{(Kept<Number>*)keys, (uint16_t*)key_scales, size}, v{(Kept<Number>*)values, (uint16_t*)value_scales, size};
  return attend(Chunk<Number>{(const Number*)query, k, v, slots, (Number*)out, (Number*)packed_keys, (Number*)packed_values,
                              rows, tokens, heads, kv_heads, size, window, scale},
                threads);
}

extern "C" int attend_chunk(const void* query, const void* keys, const void* key_scales, const void* values,
                            const void* value_scales, const int64_t* slots, void* out, void* packed_keys,
                            void* packed_values, int64_t rows, int64_t tokens, int64_t heads, int64_t kv_heads,
                            int64_t size, int64_t window, float scale, int is_bf16, int threads) {
  const auto call = is_bf16 ? attend_call<uint16_t> : attend_call<float>;
  return call(query, keys, key_scales, values, value_scales, slots, out, packed_keys, packed_values, rows, tokens, heads,
              kv_heads, size, window, scale, threads);
}
