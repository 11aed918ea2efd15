// DynamicConv of 16-bit types with kernels of several bands, without DropConnect: forward, grad_x and the gradient of the
// logits on matrix units. Each lane makes the numbers of the band's matrix that mma wants of it from the logits as they
// came: no band is written, and nothing waits for its zeros. Forward the softmax's sums grow along with the outputs.
#pragma once

#include "cuda/mma.cuh"
#include "cuda/weights.cuh"

namespace lightconv::cuda {

// What a lane has of 16 positions' numbers for the input rows that they meet, in mma's order: at[step][e] is that of the
// row g + e / 2 % 2 * 8 and the column 16 * step + 2 * q + e / 4 * 8 + e % 2, lane 4 * g + q. Column - row is the number of
// the tap of the band: outside of 0 .. Count - 1 there is none.
template <int Count> struct Fragments {
  static constexpr int steps = ceil_div(MMA_POSITIONS - 1 + Count, 16);
  float at[steps][8];

  // act(step, e, column without the lane's 2 q, is there a tap?) on each
  template <class Do> __device__ __forceinline__ static void each(const Do& act) {
    const int own = threadIdx.x % 4 * 2 - static_cast<int>(threadIdx.x % 32 / 4);  // -7 .. 6
#pragma unroll
    for (int step = 0; step < steps; ++step)
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const int column = 16 * step + e / 4 * 8 + e % 2, tap = column - e / 2 % 2 * 8;
        act(step, e, column, (tap >= 7 || tap + own >= 0) && (tap + 6 < Count || tap + own < Count));
      }
  }
};

// Where a block and its warp are. Row r of the inputs, position first + r, meets position t0 + s of the outputs in the
// offset r - s of K: that is its tap, or, turned round, tap K - 1 - offset of its own kernel.
template <Case C> struct Wide {
  using S = typename Scalar<C.type>::type;
  static constexpr WideTile tile = wide_tile(C);
  static constexpr int tiles = tile.chunk / 8;
  const ConvArgs& args;
  unsigned char* shared;
  long long sentence;  // the first row of the block's; see args.h
  int first, head, channel;
  int m, g, q;                // the warp's first position in the block; lane 4 g + q
  float sum[tiles][4] = {};   // of position m + g + i / 2 * 8 and channel 8 n + 2 q + i % 2
  float most[2], total[2] = {};  // the softmax's of positions m + g and m + g + 8 so far; `total` of the lane's own taps
  float dot[2] = {};             // of each: its weights' with the products of gradient and input

  __device__ __forceinline__ Wide(const ConvArgs& args, unsigned char* shared)
      : args(args), shared(shared), m(threadIdx.x / 32 * MMA_POSITIONS), g(threadIdx.x % 32 / 4), q(threadIdx.x % 4) {
    const int group = blockIdx.x % tile.groups, place = blockIdx.x / tile.groups;
    sentence = row_of(args, 0, place % args.B), first = place / args.B * C.positions - ahead();
    head = group / tile.parts, channel = group % tile.parts * tile.chunk;
    most[0] = most[1] = -__int_as_float(0x7f800000);
  }

  __device__ __forceinline__ int ahead() const { return C.flip ? C.K - 1 - args.padding_l : args.padding_l; }
  __device__ __forceinline__ int t0() const { return first + ahead(); }

  // ---- What is copied to shared memory ----

  __device__ __forceinline__ long long logit_row(int t) const { return (row_of(args, t, 0) + sentence) * C.H + head; }

  // `Rows` positions of x or of the gradient from t on, to rows of shared memory.
  template <int Rows> __device__ __forceinline__ void stage_rows(const void* inputs, int t, unsigned char* to) {
    constexpr int V = tile.vector;
    const long long stride = static_cast<long long>(args.step) * C.H * C.R;
    const S* x = static_cast<const S*>(inputs) + logit_row(t) * C.R + channel;
    each_place<Rows, tile.chunk / V, tile.threads>([&](int row, int lane) {
      const bool inside = static_cast<Word>(t + row) < args.T && channel + lane * V < C.R;
      const S* from = x + row * stride + lane * V;
      S* place = reinterpret_cast<S*>(to + row * tile.row_bytes) + lane * V;
      if constexpr (V == 8) copy_or_clear(place, from, inside);
      else vec<S, V>(place) = inside ? load_fixed<S, V>(from) : zeros<S, V>();
    });
  }

  // Where the logits of a band lie whose first offset is v: of position t0 + row, or, turned round, of input row v + row,
  // of which row and row + BAND_TAPS have one place: one meets the block's positions with low taps, the other with high.
  __device__ __forceinline__ unsigned char* logits_at(int v, int row) const {
    unsigned char* buffer = shared + tile.logits_offset + v / BAND_TAPS % 2 * (tile.logit_rows * tile.logit_row_bytes);
    return buffer + row % tile.logit_rows * tile.logit_row_bytes + (C.flip && row < BAND_TAPS ? 32 : 0);
  }

  // The first of a band's BAND_TAPS taps; of the last band some are beyond the kernel.
  __device__ __forceinline__ static int first_tap(int v) { return C.flip ? C.K - v - BAND_TAPS : v; }

  // Numbers that lie before them where the row is copied, since whole vectors are.
  __device__ __forceinline__ static int before(long long row, int tap) {
    return C.aligned ? (static_cast<Word>(row) * C.K + tap) % 8 : 0;
  }

  // Does row `row` of the band have taps for the block among the V numbers of its copy from `at` on? Turned round, row and
  // row + BAND_TAPS share their place, and neither may bring what the other needs.
  template <int V> __device__ __forceinline__ static bool met(int row, int at, int skipped) {
    return !C.flip || (row < BAND_TAPS ? at + V >= skipped + BAND_TAPS - row : at + row < skipped + 2 * BAND_TAPS - 1);
  }

  __device__ __forceinline__ void stage_logits(int v) const {
    constexpr int rows = C.flip ? C.positions + BAND_TAPS : C.positions;
    const int from = C.flip ? first + v : t0(), tap = first_tap(v);
    const S* logits = static_cast<const S*>(args.logits);
    if constexpr (!C.aligned) {
      each_place<rows, 32, tile.threads>([&](int row, int lane) {
        for (int at = lane; at < BAND_TAPS; at += 32) {
          const bool inside = static_cast<Word>(from + row) < args.T && static_cast<Word>(tap + at) < C.K;
          if (met<1>(row, at, 0))
            vec<S, 1>(reinterpret_cast<S*>(logits_at(v, row)) + at) =
                inside ? vec<S, 1>(logits + logit_row(from + row) * C.K + tap + at) : zeros<S, 1>();
        }
      });
    } else {
      // a thread has the same vectors of every `stride`-th row, which all begin alike
      constexpr int lanes = smaller(8, tile.threads / 8), stride = tile.threads / lanes;
      const int first_row = threadIdx.x / lanes, t = from + first_row, skipped = before(logit_row(t), tap);
      const S* number = logits + (logit_row(t) * C.K + tap - skipped);
      const long long step = static_cast<long long>(stride) * args.step * C.H * C.K;
      const auto copy = [&](int at, bool last) {
        const int inside = C.K - tap + skipped - at;  // numbers of the row from `at` on
        const auto rows_of = [&](const auto& copy_row) {
#pragma unroll
          for (int i = 0; i < rows / stride; ++i)
            if (const int row = first_row + i * stride; met<8>(row, at, skipped))
              copy_row(logits_at(v, row) + at * 2, number + i * step + at, static_cast<Word>(t + i * stride) < args.T);
        };
        if (tap + at + 8 <= skipped) return;  // before the row, where nothing is read
        if (inside <= 0 || inside >= 8 || (C.flip && !last))
          rows_of([&](void* to, const void* from, bool there) { copy_or_clear(to, from, there && inside > 0); });
        else
          rows_of([&](void* to, const void* from, bool there) { copy_later(to, from, there ? inside * 2 : 0); });
      };
#pragma unroll
      for (int at = threadIdx.x % lanes; at < 8; at += lanes) copy(at * 8, false);
      if (threadIdx.x % lanes == 0) copy(64, true);
    }
  }

  // Where input row r is in the ring: rows that are new to a band begin at a multiple of BAND_TAPS.
  __device__ __forceinline__ static int slot(int r) { return (r + BAND_TAPS - C.positions) % tile.slots; }

  // The band from offset v on; the first is the only one with rows before those that the next have in common with it.
  __device__ __forceinline__ void stage(const void* inputs, int v) {
    stage_logits(v);
    if (v == 0) stage_rows<C.positions>(inputs, first, shared + slot(0) * tile.row_bytes);
    stage_rows<BAND_TAPS>(inputs, first + v + C.positions, shared + slot(v + C.positions) * tile.row_bytes);
    finish_group();
  }

  // The lane's address for ldmatrix of the 16 input rows that the warp meets in the columns from 16 * step on.
  __device__ __forceinline__ const unsigned char* rows(int v, int step) const {
    const int lane = threadIdx.x % 32, at = slot(v) + m + 16 * step;
    return shared + ((at < tile.slots ? at : at - tile.slots) + lane % 16) * tile.row_bytes + lane / 16 * 16;
  }

  // The lane's logits of position m + g in the band from v on, of which the first is that of its first column. Position
  // m + g + 8, whose copy begins alike, has its own `eighth` numbers further on.
  static constexpr int eighth = 4 * tile.logit_row_bytes - 8;
  __device__ __forceinline__ S* own_logits(int v) const {
    return reinterpret_cast<S*>(logits_at(v, m + g)) + before(logit_row(t0() + m + g), v) + 2 * q - g;
  }

  // ---- Weights ----

  // Takes a band's largest logit of the lane into account: gives what to subtract from exponents, and the factor by which
  // all that was summed before shrinks.
  __device__ __forceinline__ void raise(int i, float top, float& base, float& shrink) {
    top = lanes_max<4>(top);
    base = top == -__int_as_float(0x7f800000) ? 0.0f : top * LOG2_E;  // where all so far are -inf
    shrink = two_to(most[i] * LOG2_E - base);
    most[i] = top, total[i] *= shrink;
  }

  // Forward: the weights, but for the division by their sum.
  template <int Count> __device__ __forceinline__ void weigh(int v, Fragments<Count>& band) {
    const S* numbers = own_logits(v);
    float top[2] = {most[0], most[1]}, base[2], shrink;
    band.each([&](int step, int e, int column, bool there) {
      const int i = e / 2 % 2;
      const float logit = there ? widen(numbers[i * eighth + column]) : C.softmax ? -__int_as_float(0x7f800000) : 0.0f;
      band.at[step][e] = logit;
      top[i] = fmaxf(top[i], logit);
    });
    if constexpr (C.softmax) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        raise(i, top[i], base[i], shrink);
#pragma unroll
        for (int n = 0; n < tiles; ++n) sum[n][2 * i] *= shrink, sum[n][2 * i + 1] *= shrink;
      }
      band.each([&](int step, int e, int, bool) {
        const int i = e / 2 % 2;
        total[i] += band.at[step][e] = two_to(band.at[step][e] * LOG2_E - base[i]);
      });
    }
  }

  // For grad_x: of each input row of the band an exponent to subtract and the bytes from the buffer to its first tap.
  struct Entry {
    float exponent;
    int bytes;
  };

  __device__ __forceinline__ Entry* entries(int v) const {
    return reinterpret_cast<Entry*>(shared + tile.entries_offset) + v / BAND_TAPS % 2 * (C.positions + BAND_TAPS);
  }

  // log2 of what a row's exponentials are divided by; of weights without softmax, 0.
  __device__ __forceinline__ float exponent_of(int t) const {
    if (!C.softmax || static_cast<Word>(t) >= args.T) return 0.0f;
    const float* of_row = args.row_sums + 2 * logit_row(t);
    return of_row[0] * LOG2_E - log_two(of_row[1]);
  }

  __device__ __forceinline__ void write_entries(int v) const {
#pragma unroll
    for (int row = threadIdx.x; row < C.positions + BAND_TAPS; row += tile.threads) {
      const int t = first + v + row, skipped = before(logit_row(t), first_tap(v));
      const int bytes = static_cast<int>(logits_at(v, row) - logits_at(v, 0)) + (skipped + BAND_TAPS - 1 - row) * 2;
      entries(v)[row] = {exponent_of(t), bytes};
    }
  }

  template <int Count> __device__ __forceinline__ void weigh_turned(int v, Fragments<Count>& band) const {
    const Entry* of_rows = entries(v) + m + 2 * q;
    const unsigned char* numbers = logits_at(v, 0) + (m + g) * 2;
    band.each([&](int step, int e, int column, bool there) {
      const Entry of_row = of_rows[column];
      const float logit =
          there ? widen(*reinterpret_cast<const S*>(numbers + of_row.bytes + e / 2 % 2 * 16)) : 0.0f;
      band.at[step][e] = !there ? 0.0f : C.softmax ? two_to(logit * LOG2_E - of_row.exponent) : logit;
    });
  }

  // ---- Sums ----

  template <int Count> __device__ __forceinline__ void multiply(int v, const Fragments<Count>& band) {
#pragma unroll
    for (int step = 0; step < Fragments<Count>::steps; ++step) {
      Word a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float pair[2] = {band.at[step][2 * i], band.at[step][2 * i + 1]};
        a[i] = narrow<S, 2>(pair).pair[0];
      }
      const unsigned char* x = rows(v, step);
#pragma unroll
      for (int n = 0; n < tiles; n += 2) {
        Word b[4];
        load_matrices<true>(b, x + n * 16);
        mma<S>(sum[n], a, {b[0], b[1]});
        mma<S>(sum[n + 1], a, {b[2], b[3]});
      }
    }
  }

  // The sums anew where one is not finite, without the zeros beside the band, which make NaN of such an input.
  __device__ __forceinline__ void add_within_reach(const void* inputs, const float (&scale)[2]) {
    const S* logits = static_cast<const S*>(args.logits);
    const S* x = static_cast<const S*>(inputs) + channel + 2 * q;
#pragma unroll
    for (int n = 0; n < tiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[n][i] = 0.0f;
#pragma unroll 1
    for (int offset = 0; offset < C.K; ++offset) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int s = m + g + 8 * i, from = first + s + offset;
        if (t0() + s >= args.T || static_cast<Word>(from) >= args.T) continue;
        const int tap = C.flip ? C.K - 1 - offset : offset;
        const float logit = widen(logits[logit_row(C.flip ? from : t0() + s) * C.K + tap]);
        const float weight = !C.softmax ? logit
                             : C.flip   ? two_to(logit * LOG2_E - exponent_of(from))
                                        : two_to((logit - most[i]) * LOG2_E) * scale[i];
        const S* row = x + logit_row(from) * C.R;
#pragma unroll
        for (int n = 0; n < tiles; ++n)
#pragma unroll
          for (int c = 0; c < 2; ++c)
            if (channel + 8 * n + 2 * q + c < C.R) sum[n][2 * i + c] += weight * widen(row[8 * n + c]);
      }
    }
  }

  // act(v, fragments) on each band, while the next is on its way.
  template <class Do> __device__ __forceinline__ void each_band(const void* inputs, const Do& act) {
    stage(inputs, 0);
    if constexpr (C.flip) write_entries(0);
    int v = 0;
#pragma unroll 1
    for (; v + BAND_TAPS <= C.K; v += BAND_TAPS) one_band<BAND_TAPS>(inputs, v, act);
    if constexpr (C.K % BAND_TAPS > 0) one_band<C.K % BAND_TAPS>(inputs, v, act);
  }

  template <int Count, class Do>
  __device__ __forceinline__ void one_band(const void* inputs, int v, const Do& act) {
    wait_for_copies<0>();
    __syncthreads();
    if (v + Count < C.K) stage(inputs, v + Count);
    Fragments<Count> band;
    act(v, band);
    if (C.flip && v + Count < C.K) write_entries(v + Count);
  }

  // The sums of all bands, of inputs that are x or the gradient.
  __device__ __forceinline__ void add_up(const void* inputs) {
    each_band(inputs, [&](int v, auto& band) {
      if constexpr (C.flip) weigh_turned(v, band);
      else weigh(v, band);
      multiply(v, band);
    });
    float scale[2] = {1.0f, 1.0f}, spoiled = 0.0f;
#pragma unroll
    for (int i = 0; i < 2 && C.softmax && !C.flip; ++i) scale[i] = 1.0f / lanes_sum<4>(total[i]);
#pragma unroll
    for (int n = 0; n < tiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) spoiled += (sum[n][i] *= scale[i / 2]) * 0.0f;
    if (spoiled != 0.0f) add_within_reach(inputs, scale);
  }

  // ---- Results ----

  __device__ __forceinline__ void store_sums() {
    constexpr int V = tile.vector, lanes = tile.chunk / V;
    unsigned char* to = shared + m * tile.row_bytes;
    __syncthreads();
#pragma unroll
    for (int n = 0; n < tiles; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float pair[2] = {sum[n][2 * i], sum[n][2 * i + 1]};
        vec<S, 2>(reinterpret_cast<S*>(to + (g + 8 * i) * tile.row_bytes) + 8 * n + 2 * q) = narrow<S, 2>(pair);
      }
    __syncwarp();
    const long long stride = static_cast<long long>(args.step) * C.H * C.R;
    S* out = static_cast<S*>(args.out) + logit_row(0) * C.R + channel;
#pragma unroll 4
    for (int i = threadIdx.x % 32; i < MMA_POSITIONS * lanes; i += 32) {
      const int row = i / lanes, c = i % lanes * V, t = t0() + m + row;
      if (t < args.T && channel + c < C.R)
        store<S, V>(out + t * stride + c, vec<S, V>(reinterpret_cast<const S*>(to + row * tile.row_bytes) + c));
    }
  }

  // ---- The gradient of the logits ----

  // Products of the gradient, which is in shared memory as it is, with the input rows of a band.
  template <int Count> __device__ __forceinline__ void products(int v, Fragments<Count>& band) const {
    const int lane = threadIdx.x % 32;
    const unsigned char* grad = shared + tile.grad_offset + (m + lane % 16) * tile.row_bytes + lane / 16 * 16;
    const unsigned char* x[Fragments<Count>::steps];
#pragma unroll
    for (int step = 0; step < Fragments<Count>::steps; ++step) x[step] = rows(v, step);
    float product[Fragments<Count>::steps][2][4] = {}, spoiled = 0.0f;
#pragma unroll
    for (int c = 0; c < tile.chunk * 2; c += MMA_CHANNELS * 2) {
      Word a[4];
      load_matrices<false>(a, grad + c);
#pragma unroll
      for (int step = 0; step < Fragments<Count>::steps; ++step) {
        Word b[4];
        load_matrices<false>(b, x[step] + c);
        mma<S>(product[step][0], a, {b[0], b[2]});
        mma<S>(product[step][1], a, {b[1], b[3]});
      }
    }
    band.each([&](int step, int e, int, bool) { spoiled += (band.at[step][e] = product[step][e / 4][e % 4]) * 0.0f; });
    if (spoiled != 0.0f)  // by the zeros beside the sequence, where the gradient is not finite
      band.each([&](int step, int e, int column, bool) {
        if (static_cast<Word>(first + v + m + 2 * q + column) >= args.T) band.at[step][e] = 0.0f;
      });
  }

  // First pass: sums of the weights, but for their division by it, and of their products.
  template <int Count> __device__ __forceinline__ void add_products(int v, const Fragments<Count>& band) {
    const S* numbers = own_logits(v);
    float top[2] = {most[0], most[1]}, base[2], shrink;
    band.each([&](int, int e, int column, bool there) {
      const int i = e / 2 % 2;
      if (there) top[i] = fmaxf(top[i], widen(numbers[i * eighth + column]));
    });
#pragma unroll
    for (int i = 0; i < 2; ++i) raise(i, top[i], base[i], shrink), dot[i] *= shrink;
    band.each([&](int step, int e, int column, bool there) {
      const int i = e / 2 % 2;
      if (!there) return;
      const float weight = two_to(widen(numbers[i * eighth + column]) * LOG2_E - base[i]);
      total[i] += weight, dot[i] += weight * band.at[step][e];
    });
  }

  // After it: the rows' sums, for grad_x too.
  __device__ __forceinline__ void finish_products() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int t = t0() + m + g + 8 * i;
      total[i] = lanes_sum<4>(total[i]), dot[i] = lanes_sum<4>(dot[i]) / total[i];
      if (t < args.T && q < 2) args.row_sums[2 * logit_row(t) + q] = q == 0 ? most[i] : 1.0f / total[i];
      total[i] = most[i] * LOG2_E + log_two(total[i]);  // what to subtract from exponents
    }
    __syncthreads();
  }

  // Second pass: the gradient of a band's logits takes their place.
  template <int Count> __device__ __forceinline__ void differentiate(int v, const Fragments<Count>& band) const {
    S* numbers = own_logits(v);
    band.each([&](int step, int e, int column, bool there) {
      const int i = e / 2 % 2;
      if (!there) return;
      float result = band.at[step][e];
      S& number = numbers[i * eighth + column];
      if constexpr (C.softmax) result = two_to(widen(number) * LOG2_E - total[i]) * (result - dot[i]);
      number = narrow<S>(result);
    });
    __syncwarp();
    store_logits<Count>(v);
  }

  // The warp's rows of a band from shared memory: whole vectors, and number by number what shares one with a neighbour.
  template <int Count> __device__ __forceinline__ void store_logits(int v) const {
    constexpr int V = C.aligned ? 8 : 1, lanes = ceil_div(Count, V);
    S* out = static_cast<S*>(args.grad_logits);
    const int lane = threadIdx.x % 32;
#pragma unroll 4
    for (int i = lane; i < MMA_POSITIONS * lanes; i += 32) {
      const int row = m + i / lanes, number = i % lanes * V, t = t0() + row;
      const long long start = logit_row(t) * C.K + v;
      const int skipped = before(logit_row(t), v);
      if (t < args.T && number >= skipped && number + V <= skipped + Count)
        store<S, V>(out + start - skipped + number, vec<S, V>(reinterpret_cast<const S*>(logits_at(v, row)) + number));
    }
    if constexpr (C.aligned) {
      const int row = m + lane / 2, t = t0() + row, skipped = before(logit_row(t), v), end = skipped + Count;
      const int whole = skipped > 0 ? 8 : 0, rest = larger(whole, end / 8 * 8);  // whole vectors are those between
      const int from = lane % 2 == 0 ? skipped : rest, stop = lane % 2 == 0 ? smaller(whole, end) : end;
      const S* numbers = reinterpret_cast<const S*>(logits_at(v, row));
      S* to = out + logit_row(t) * C.K + v - skipped;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const S number = numbers[from + i];  // of the row's copy, whatever it is
        if (t < args.T && from + i < stop) to[from + i] = number;
      }
    }
  }
};

template <Case C> __device__ __forceinline__ void wide(const ConvArgs& args, unsigned char* shared) {
  Wide<C> block(args, shared);
  block.add_up(args.x);
  block.store_sums();
}

template <Case C> __device__ __forceinline__ void wide_grad(const ConvArgs& args, unsigned char* shared) {
  Wide<C> block(args, shared);
  block.template stage_rows<C.positions>(args.grad, block.t0(), shared + Wide<C>::tile.grad_offset);
  if constexpr (C.softmax) {
    block.each_band(args.x, [&](int v, auto& band) {
      block.products(v, band);
      block.add_products(v, band);
    });
    block.finish_products();
  }
  block.each_band(args.x, [&](int v, auto& band) {
    block.products(v, band);
    block.differentiate(v, band);
  });
}

}  // namespace lightconv::cuda
