// The compile-time parameters of a kernel and its division into blocks. The launcher and the kernels, which NVRTC
// compiles, include this file, so they always agree. T, B, C, H, K and R = C / H as in ops/reference.py.
#pragma once

namespace lightconv::cuda {

enum class Type : int { f32, f16, bf16, f64 };

constexpr int size_of(Type type) { return type == Type::f64 ? 8 : type == Type::f32 ? 4 : 2; }

// Compile-time facts of a kernel. A field that a kernel does not read stays 0, so that equal kernels are compiled once.
struct Case {
  Type type;
  int K, R, H;
  int positions;      // output positions of one block
  bool dynamic;       // logits (T, B, H, K), not (H, K)
  bool softmax;
  bool drop;          // DropConnect
  bool flip;          // grad_x: the transposed convolution of the gradient
  bool aligned;       // all pointers are multiples of 16 bytes; loss and candidates: all rows, of R numbers
  bool tensor_cores;  // mma of 16-bit types with float32 sums, sm_80 and later
  bool mask;          // glu, attend: a padding mask
  bool both;          // grad_x and the gradient of the weights by one kernel
};

constexpr int SHARED_LIMIT = 48 * 1024;  // shared memory of a block, in bytes, on all architectures without opt-in
constexpr int SHARED_ASKED = 72 * 1024;  // with opt-in, from sm_80 on; on sm_90 three such blocks fit
constexpr int RUN = 8;                   // positions of one thread of the convolution
constexpr int MMA_POSITIONS = 16, MMA_CHANNELS = 16;

constexpr int smaller(int a, int b) { return a < b ? a : b; }
constexpr int larger(int a, int b) { return a > b ? a : b; }
constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
constexpr int round_up(int a, int b) { return ceil_div(a, b) * b; }

// The largest power of two that divides n, at most `most`.
constexpr int power_of_two_in(int n, int most) {
  int width = most;
  while (n % width) width /= 2;
  return width;
}

constexpr int power_of_two_from(int n) {
  int power = 1;
  while (power < n) power *= 2;
  return power;
}

// Elements of one memory access: 16 bytes, or as many as a head's channels allow.
constexpr int vector_of(const Case& c) { return c.aligned ? power_of_two_in(c.R, 16 / size_of(c.type)) : 1; }

constexpr int BAND_TAPS = 64, BAND_CHANNELS = 64;

// Kernels wider than BAND_TAPS are processed in several bands. In one band's Case, K is the taps of a full band.
constexpr int bands_of(const Case& c) { return ceil_div(c.K, BAND_TAPS); }
constexpr Case one_band(Case c) {
  c.K = smaller(c.K, BAND_TAPS);
  return c;
}

// True if the weights differ between positions.
constexpr bool per_position(const Case& c) { return c.dynamic || c.drop; }

// Tiles of the convolution without tensor cores. A block computes `positions` positions of one sentence for `heads`
// whole heads, or for one of the `parts` of a wide head. Each thread sums RUN positions of `vector` neighbouring
// channels.
struct ConvTile {
  int vector, heads, lanes, parts, runs, threads;
  int taps;          // of one band
  int band;          // weights of one run and head, ordered by (input row, position of the run)
  int band_offset;   // bytes; the space before it holds first the logits, then the input rows
  int shared_bytes;  // 0: does not fit

  constexpr int channels() const { return lanes * vector; }
};

constexpr ConvTile conv_tile_of(const Case& c, int heads) {
  ConvTile tile{};
  tile.vector = vector_of(c);
  const int head_lanes = c.R / tile.vector, most = tile.vector == 1 ? 32 : 16;
  tile.heads = head_lanes > most ? 1 : heads;
  tile.parts = ceil_div(head_lanes, most);
  tile.lanes = tile.parts > 1 ? most : heads * head_lanes;
  tile.runs = c.positions / RUN;
  tile.threads = round_up(tile.lanes * tile.runs, 32);
  tile.taps = smaller(c.K, BAND_TAPS);
  tile.band = (tile.taps + RUN - 1) * RUN;
  const int rows = c.positions + tile.taps - 1;
  const int logit_rows = !per_position(c) ? 1 : c.flip ? rows : c.positions;
  const int inputs = rows * tile.channels() * size_of(c.type), logits = bands_of(c) > 1 ? 0 : logit_rows * tile.heads * c.K * size_of(c.type);
  tile.band_offset = round_up(larger(inputs, logits), 16);
  tile.shared_bytes = tile.band_offset + (per_position(c) ? tile.runs : 1) * tile.heads * tile.band * 4;
  if (tile.shared_bytes > SHARED_LIMIT) tile.shared_bytes = 0;
  return tile;
}

// The largest number of heads that fits and needs at most 16 lanes per row (scalar access: 32). If rows of less than 64
// bytes do not fit, the number is not reduced further: the caller first tries fewer positions.
constexpr ConvTile conv_tile(const Case& c) {
  const int head_lanes = c.R / vector_of(c), most = vector_of(c) == 1 ? 32 : 16;
  for (int heads = smaller(c.H, larger(1, most / head_lanes)); heads >= 1; heads /= 2) {
    const ConvTile tile = conv_tile_of(c, heads);
    if (tile.shared_bytes > 0) return tile;
    if (c.positions > RUN && heads * c.R * size_of(c.type) < 64) break;
  }
  return ConvTile{};
}

// Products of the gradient and x in shared memory: floats [position][head][tap], for a block of `threads` threads.
struct Products {
  int heads, threads, taps, stride;

  constexpr int bytes(int positions) const { return round_up(positions * heads * stride * 4, 16); }
};

// Groups of positions. LightConv sums the products of each group separately, so that more threads take part.
constexpr int groups_of(const Case& c) { return ceil_div(c.positions, MMA_POSITIONS); }

// Tiles of the convolution on tensor cores. A warp computes 16 positions of `chunk` channels of one head; a block
// computes `positions` positions of `heads` whole heads, or of `parts` chunks of a wide head. The kernels at 16
// positions form a band matrix: a row holds the `taps` weights of one position, and a column belongs to an input row
// that any of the 16 positions reaches.
struct BandTile {
  int vector, chunk, parts, heads, groups, threads;
  int taps, steps;                  // of one band; steps: its columns / 16
  int rows, row_bytes;              // input rows of one band in shared memory
  int band_rows, band_row_bytes;    // of one head
  int weight_rows;                  // positions whose weights the block needs; MMA_POSITIONS if all are the same
  int logit_rows, logit_row_bytes;  // copied from 16-byte boundaries: a row starts within its first 16 bytes
  int band_offset, x_offset, logits_offset, totals_offset, shared_bytes;  // bytes; shared_bytes 0: does not fit
  Products products;                // if both: they replace x in shared memory
};

constexpr BandTile band_tile_of(const Case& c, int heads, int parts) {
  BandTile tile{};
  const int all_parts = ceil_div(c.R, BAND_CHANNELS);
  tile.vector = vector_of(c);
  tile.chunk = round_up(ceil_div(c.R, all_parts), MMA_CHANNELS);
  tile.parts = parts, tile.heads = heads;
  tile.groups = ceil_div(c.H, heads) * ceil_div(all_parts, parts);
  tile.threads = 32 * (c.positions / MMA_POSITIONS) * heads * parts;
  tile.taps = smaller(c.K, BAND_TAPS);
  tile.steps = ceil_div(MMA_POSITIONS - 1 + tile.taps, 16);
  tile.rows = c.positions + 16 * (tile.steps - 1);
  tile.row_bytes = heads * parts * tile.chunk * 2 + 16;  // an odd multiple of 16: 8 rows without bank conflicts
  tile.band_rows = per_position(c) ? c.positions : MMA_POSITIONS;
  tile.band_row_bytes = tile.steps * 32 + 16;
  tile.weight_rows = !per_position(c) ? MMA_POSITIONS : c.flip ? c.positions + tile.taps - 1 : c.positions;
  tile.logit_rows = c.dynamic ? tile.weight_rows : 1;
  tile.logit_row_bytes = round_up(tile.taps * 2 + 14, 16);
  tile.products = {heads, tile.threads, tile.taps, tile.taps | 1};
  tile.band_offset = tile.rows * tile.row_bytes;
  tile.x_offset = tile.band_offset + heads * tile.band_rows * tile.band_row_bytes;
  tile.logits_offset = tile.x_offset + (c.both ? larger(tile.band_offset, tile.products.bytes(c.positions)) : 0);
  tile.totals_offset = tile.logits_offset + heads * tile.logit_rows * tile.logit_row_bytes;
  tile.shared_bytes = tile.totals_offset + (c.both && !c.dynamic ? groups_of(c) * heads * tile.taps * 4 : 0);
  const bool whole = bands_of(c) == 1 && parts == all_parts;
  const int limit = c.both ? SHARED_ASKED : SHARED_LIMIT;
  if (tile.shared_bytes > limit || tile.threads > 512 || (c.both && !whole)) tile.shared_bytes = 0;
  return tile;
}

// Heads for at least four warps and rows of at least 64 bytes, or fewer if these do not fit or H is smaller. As many
// parts of a wide head as fit share a block.
constexpr BandTile band_tile(const Case& c) {
  const int warps = c.positions / MMA_POSITIONS, wanted = larger(4 / warps, ceil_div(32, c.R));
  for (int heads = c.R > BAND_CHANNELS ? 1 : smaller(c.H, wanted); heads >= 1; heads /= 2)
    for (int parts = ceil_div(c.R, BAND_CHANNELS); parts >= 1; --parts) {
      const BandTile tile = band_tile_of(c, heads, parts);
      if (tile.shared_bytes > 0) return tile;
    }
  return BandTile{};
}

// Tiles of the gradient of the weights. A block works on `positions` positions of `heads` heads of one sentence, and
// reads the channels of a head in `chunks` chunks of `chunk` channels. Its sums over the channels are a band of the
// matrix product G X^T of the gradient and the input.
struct GradTile {
  int vector, heads, chunk, chunks, threads;
  int taps;          // of one band
  int rows;          // input rows in shared memory; those beyond positions + taps - 1 only feed discarded sums
  int row_bytes;     // of a row of x or of the gradient
  int skew;          // bytes added after every 4 rows, to avoid bank conflicts
  Products products;
  int logits_offset, sums_offset, shared_bytes;  // bytes; shared_bytes 0: does not fit

  constexpr int offset(int row) const { return row * row_bytes + row / 4 * skew; }
};

constexpr int GRAD_POSITIONS = 4, GRAD_TAPS = 8;  // per thread, without tensor cores

constexpr GradTile grad_tile_of(const Case& c, int heads) {
  GradTile tile{};
  const int size = size_of(c.type);
  tile.taps = smaller(c.K, BAND_TAPS);
  tile.vector = vector_of(c);
  tile.heads = heads;
  tile.chunks = ceil_div(c.R * size, 160);
  tile.chunk = round_up(ceil_div(c.R, tile.chunks), c.tensor_cores ? MMA_CHANNELS : tile.vector);
  tile.row_bytes = round_up(heads * tile.chunk * size, c.tensor_cores ? 32 : 16);
  if (c.tensor_cores) {
    tile.row_bytes += 16;
    tile.threads = 32 * heads * (c.positions / MMA_POSITIONS);
    tile.rows = c.positions + round_up(tile.taps - 1, 16);
  } else {
    tile.skew = 16;
    tile.threads = larger(64, round_up(heads * (c.positions / GRAD_POSITIONS) * ceil_div(tile.taps, GRAD_TAPS), 32));
    tile.rows = c.positions + round_up(tile.taps, GRAD_TAPS) - 1;
  }
  tile.products = {heads, tile.threads, tile.taps, tile.taps | 1};
  const int inputs = tile.offset(c.positions + 3) + tile.offset(tile.rows + 3);
  tile.logits_offset = tile.products.bytes(c.positions);
  const bool whole = bands_of(c) == 1;
  const int logits = c.dynamic && c.softmax && whole ? c.positions * heads * c.K * size : 0;
  tile.sums_offset = round_up(larger(inputs, tile.logits_offset + logits), 16);
  tile.shared_bytes = tile.sums_offset + heads * (!c.dynamic ? groups_of(c) * tile.taps : whole ? 0 : c.positions) * 4;
  if (tile.shared_bytes > SHARED_LIMIT || tile.threads > 512) tile.shared_bytes = 0;
  return tile;
}

constexpr GradTile grad_tile(const Case& c) {
  for (int heads = smaller(c.H, larger(1, 128 / (c.R * size_of(c.type)))); heads >= 1; heads /= 2) {
    const GradTile tile = grad_tile_of(c, heads);
    if (tile.shared_bytes > 0) return tile;
  }
  return GradTile{};
}

// Warps that add up LightConv's partial sums of one head: each adds some of the splits. The sums of a wide kernel stay
// in the registers of a single warp.
constexpr int finish_warps(int K) { return K <= 256 ? 8 : 1; }

// Tiles of a decoding step. A block computes one row of `heads` heads. Shared memory holds the positions of its K
// inputs in the ring and their weights.
struct StepTile {
  int vector, heads, threads, weights_offset, shared_bytes;  // bytes; shared_bytes 0: does not fit
};

constexpr StepTile step_tile(const Case& c) {
  StepTile tile{};
  tile.vector = vector_of(c);
  const int weight = c.type == Type::f64 ? 8 : 4;
  tile.heads = smaller(c.H, larger(1, SHARED_LIMIT / 2 / (c.K * weight)));
  tile.threads = smaller(256, round_up(tile.heads * c.R / tile.vector, 32));
  tile.weights_offset = c.K * 8;
  tile.shared_bytes = tile.weights_offset + tile.heads * c.K * weight;
  if (tile.shared_bytes > SHARED_LIMIT) tile.shared_bytes = 0;
  return tile;
}

}  // namespace lightconv::cuda
