// Attention of one row of each of many requests, over keys and values that stay where they are in their pages.
//
// The text of a request is a list of runs of slots, in the order of its tokens. All queries that share a head of keys
// read it together, 16 tokens at a time; the softmax is online (Day 2.4), in float32.
#include "kept.h"

constexpr int MOST_QUERIES = 16;  // that share a head of keys
constexpr int MOST_LINES = 16;    // of a head: 256 numbers

template <typename Number>
struct Decodes {
  const Number* query;                  // (rows, heads, size)
  Rows<Number> keys, values;            // of (slots, kv_heads)
  Number* out;                          // (rows, heads, size)
  const int64_t *starts, *counts;       // of each run: its first slot and how many slots it has
  const int64_t* runs;                  // (rows + 1): the runs of row r are runs[r] to runs[r + 1] - 1
  int64_t heads, kv_heads, size;
  float scale;

  int queries() const { return int(heads / kv_heads); }
  int lines() const { return int(size / LINE); }
  int64_t place(int64_t slot, int64_t kv_head) const { return slot * kv_heads + kv_head; }
};

// The state of one row and one head of keys: for each query the weighted sum of the values so far, the largest score,
// and the sum of the weights. A score is an exponent of 2.
struct State {
  Line query[MOST_QUERIES][MOST_LINES], sum[MOST_QUERIES][MOST_LINES];
  float most[MOST_QUERIES], total[MOST_QUERIES];
};

// Up to 16 tokens, at neighbouring slots.
struct Tokens {
  int64_t slot;
  int count;
};

template <typename Number>
static void begin(const Decodes<Number>& d, const Number* query, State& state) {
  const Line scale = line_of(d.scale * 1.44269504f);  // 2^(x · log2 e) is e^x
  for (int q = 0; q < d.queries(); q++) {
    state.most[q] = -INFINITY;
    state.total[q] = 0;
    for (int i = 0; i < d.lines(); i++) {
      state.query[q][i] = times(load(query + q * d.size + i * LINE), scale);
      state.sum[q][i] = line_of(0);
    }
  }
}

// The scores of some tokens for Q queries from query `q` on; -inf for absent tokens.
// GIVEN: how keys are read is the product of Tasks 1 and 2 again.
template <int Q, typename Number>
static void score(const Decodes<Number>& d, int64_t kv_head, Tokens tokens, const State& state, int q, Line* scores) {
  Eight dots[Q][LINE];
  float scales[LINE];
  for (int t = 0; t < LINE; t++) {
    const int64_t row = d.place(tokens.slot + t, kv_head);
    const auto* key = d.keys.at(row);
    Line sums[Q] = {};
    for (int at = 0; at < d.lines() && t < tokens.count; at++) {
      const Line some = load(key + at * LINE);
      // Of one head, a token is a few lines of the cache: too few for the processor to foresee the next ones.
      __builtin_prefetch(key + d.kv_heads * d.size * LINE + at * LINE);
      for (int i = 0; i < Q; i++) sums[i] = multiply_add(some, state.query[q + i][at], sums[i]);
    }
    for (int i = 0; i < Q; i++) dots[i][t] = folded(sums[i]);
    scales[t] = t < tokens.count ? d.keys.scale(row) : 0;
  }
  for (int i = 0; i < Q; i++) {
    scores[i] = times(sums_of(dots[i]), load(scales));
    for (int t = tokens.count; t < LINE; t++) scores[i].part[t / WIDTH][t % WIDTH] = -INFINITY;
  }
}

// Adds the values of some tokens to the sums of Q queries, each with its weight.
// GIVEN: how values are read.
template <int Q, typename Number>
static void add_values(const Decodes<Number>& d, int64_t kv_head, Tokens tokens, State& state, int q, const Line* weights) {
  float some[Q][LINE];
  for (int i = 0; i < Q; i++) store(some[i], weights[i], LINE);
  for (int t = 0; t < tokens.count; t++)
    for (int i = 0; i < Q; i++) some[i][t] *= d.values.scale(d.place(tokens.slot + t, kv_head));
  for (int at = 0; at < d.lines(); at++) {
    Line sums[Q];
    for (int i = 0; i < Q; i++) sums[i] = state.sum[q + i][at];
    for (int t = 0; t < tokens.count; t++) {
      const auto* value_at = d.values.at(d.place(tokens.slot + t, kv_head)) + at * LINE;
      const Line value = load(value_at);
      __builtin_prefetch(value_at + d.kv_heads * d.size * LINE);
      for (int i = 0; i < Q; i++) sums[i] = multiply_add(value, line_of(some[i][t]), sums[i]);
    }
    for (int i = 0; i < Q; i++) state.sum[q + i][at] = sums[i];
  }
}

// Takes up to 16 tokens into the state of Q queries from query `q` on: what is loaded is used by all of them.
template <int Q, typename Number>
static int attend_tokens(const Decodes<Number>& d, int64_t kv_head, Tokens tokens, State& state, int q) {
  Line lines[Q];  // of each query, first its scores and then its weights
  // TASK 4.1.4: score the tokens, turn the scores into weights by the online softmax, and add the values.
  // All that the state holds is in units of 2^most: when `most` grows, it must shrink before anything is added.
  return 4;
  // END TASK
}

// All queries from query `q` on, Q at a time, and then those that are left.
template <int Q, typename Number>
static int attend_queries(const Decodes<Number>& d, int64_t kv_head, Tokens tokens, State& state, int q) {
  int task = 0;
  for (; q + Q <= d.queries(); q += Q) task = blank(task, attend_tokens<Q>(d, kv_head, tokens, state, q));
  if constexpr (Q > 1) task = blank(task, attend_queries<Q - 1>(d, kv_head, tokens, state, q));
  return task;
}

template <typename Number>
static int attend_row(const Decodes<Number>& d, int64_t row, int64_t kv_head) {
  const int64_t first = row * d.heads + kv_head * d.queries();
  State state;
  begin(d, d.query + first * d.size, state);
  int task = 0;
  for (int64_t run = d.runs[row]; run < d.runs[row + 1]; run++)
    for (int64_t at = 0; at < d.counts[run]; at += LINE) {
      const int count = int(d.counts[run] - at < LINE ? d.counts[run] - at : LINE);
      task = blank(task, attend_queries<4>(d, kv_head, {d.starts[run] + at, count}, state, 0));
    }
  for (int q = 0; q < d.queries(); q++)
    for (int i = 0; i < d.lines(); i++) {
      const Line mean = times(state.sum[q][i], line_of(1 / state.total[q]));
      store(d.out + (first + q) * d.size + i * LINE, mean, LINE);
    }
  return task;
}

template <typename Number>
static int attend(const Decodes<Number>& d, int64_t rows, int threads) {
  int task = 0;
#pragma omp parallel for num_threads(threads) schedule(dynamic) reduction(max : task)
  for (int64_t i = 0; i < rows * d.kv_heads; i++) task = blank(task, attend_row(d, i / d.kv_heads, i % d.kv_heads));
  return task;
}

template <typename Number>
static int attend_call(const void* query, const void* keys, const void* key_scales, const void* values,
                       const void* value_scales, void* out, const int64_t* starts, const int64_t* counts, const int64_t* runs,
                       int64_t rows, int64_t heads, int64_t kv_heads, int64_t size, float scale, int threads) {
  const Rows<Number> k{(Kept<Number>*)keys, (uint16_t*)key_scales, size}, v{(Kept<Number>*)values, (uint16_t*)value_scales, size};
  return attend(Decodes<Number>{(const Number*)query, k, v, (Number*)out, starts, counts, runs, heads, kv_heads, size, scale},
                rows, threads);
}

extern "C" int attend_decodes(const void* query, const void* keys, const void* key_scales, const void* values,
                              const void* value_scales, void* out, const int64_t* starts, const int64_t* counts,
                              const int64_t* runs, int64_t rows, int64_t heads, int64_t kv_heads, int64_t size, float scale,
                              int is_bf16, int threads) {
  const auto call = is_bf16 ? attend_call<uint16_t> : attend_call<float>;
  return call(query, keys, key_scales, values, value_scales, out, starts, counts, runs, rows, heads, kv_heads, size, scale,
              threads);
}
