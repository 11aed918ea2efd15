// How the work is cut, and the memory that a unit of it takes.

constexpr int64_t kChunk = 128;     // positions of a unit: long against the K - 1 rows that it shares with its neighbours
constexpr int64_t kChannels = 256;  // channels of a unit: a row that memory gives at full speed; all fits a core's cache
constexpr int64_t kShuffled = LIGHTCONV_BITS > 128 ? kFewTaps : 0;  // the widest kernels that narrow.inl puts in order
constexpr int64_t kUnits = 64;      // cut finer than that where there are fewer units, for the threads of a large machine

// Memory that a thread keeps from unit to unit, handed out in whole vectors.
class Arena {
 public:
  explicit Arena(void* memory) : next_((reinterpret_cast<uintptr_t>(memory) + 63) / 64 * 64) {}
  template <class A>
  A* take(int64_t count) {
    A* here = reinterpret_cast<A*>(next_);
    next_ += round_up(count * static_cast<int64_t>(sizeof(A)), 64) + 64;  // a gap: rows of two arrays fall apart
    return here;
  }
  uintptr_t used() const { return next_ + 64; }

 private:
  uintptr_t next_;
};

template <class A>
struct Scratch {
  // numbers of: a packed row of a head (wide: of all heads), a row of kernels, of transposed inputs, of inner products
  int64_t row, taps, columns, products;
  int64_t block;          // numbers of a head's packed rows
  int64_t out_row, kernel_block;
  A *x, *g;               // packed rows: (head, rows, row)
  A* out;                 // (rows, channels)
  A *kernels, *factors, *used;  // (head, rows, taps): normalised; DropConnect's factors; their product
  A* wide;                // kernels, one a channel: (K, row); so are, by channel, factors and gradients
  A* light;               // LightConv's with DropConnect: (head, taps)
  A *transposed, *product, *line;
  A* gradients;           // of kernels: (rows, head, taps), or, one a channel, (K, row)
  Index<A> *by_tap, *by_head;  // narrow.inl
  uintptr_t end;

  Scratch(const Conv& conv, const Units& units, bool backward, Arena arena) {
    constexpr int n = kLanes<A>;
    const int64_t seen = units.rows + conv.K - 1, rows = seen < conv.T ? seen : conv.T;  // those outside are not packed
    const int64_t R = conv.C / conv.H, blocks = units.wide ? 1 : units.heads;
    row = round_up(units.wide ? units.heads * R : R, n), taps = round_up(conv.K, n);
    products = round_up(conv.K + kProductRows - 1, n);
    columns = round_up(units.rows + products + n, n);
    block = rows * row, kernel_block = rows * taps, out_row = blocks * row;
    x = arena.take<A>(blocks * block);
    out = arena.take<A>(units.rows * out_row);
    line = arena.take<A>(taps * n);
    g = kernels = factors = used = wide = light = transposed = product = gradients = nullptr;
    if (units.wide) wide = arena.take<A>(conv.K * row);
    by_tap = by_head = nullptr;
    if (units.by_channel) {
      factors = arena.take<A>(conv.K * row), gradients = arena.take<A>(conv.K * row);
      const int64_t shuffles = conv.dynamic ? conv.K * conv.K : 0;
      by_tap = arena.take<Index<A>>(shuffles), by_head = arena.take<Index<A>>(shuffles);
    }
    if (units.kernel_rows) {
      kernels = used = arena.take<A>(blocks * kernel_block), light = arena.take<A>(blocks * taps);
      if (conv.dropconnect > 0)
        factors = arena.take<A>(blocks * kernel_block), used = arena.take<A>(blocks * kernel_block);
    }
    if (backward) {
      g = arena.take<A>(blocks * block);
      if (units.kernel_rows) {
        transposed = arena.take<A>(row * columns);
        product = arena.take<A>(kProductRows * products + n);  // rows are read from any number on
        gradients = arena.take<A>(units.rows * units.heads * taps);
      } else if (!units.by_channel) {
        gradients = arena.take<A>(conv.K * row);
      }
    }
    end = arena.used();
  }
};

template <class A>
Units units_of(const Conv& conv, bool backward) {
  Units units{};
  const int64_t R = conv.C / conv.H;
  const bool own_kernels = conv.dynamic || conv.dropconnect > 0;
  units.wide = conv.dynamic ? R == 1 && conv.K <= kShuffled : R < kLanes<A>;
  units.by_channel = own_kernels && units.wide;
  units.kernel_rows = own_kernels && !units.wide;
  units.heads = kChannels / R < 1 ? 1 : kChannels / R < conv.H ? kChannels / R : conv.H;
  int64_t chunk = kChunk;
  for (;; chunk /= 2) {
    units.chunks = (conv.T + chunk - 1) / chunk;
    units.rows = conv.offsets != nullptr ? chunk : (conv.T + units.chunks - 1) / units.chunks;
    units.sentences = units.rows >= chunk ? 1 : chunk / units.rows;
    units.batches = (conv.B + units.sentences - 1) / units.sentences;
    units.partials = units.chunks * units.batches;
    for (;; units.heads = (units.heads + 1) / 2) {
      units.groups = (conv.H + units.heads - 1) / units.heads;
      units.count = units.groups * units.partials;
      if (units.count >= kUnits || units.heads * R <= kChannels / 4 || units.heads == 1) break;
    }
    if (units.count >= kUnits || chunk <= 32) break;
  }
  units.scratch = Scratch<A>(conv, units, backward, Arena(nullptr)).end;
  return units;
}

// Where a unit lies. Wide groups stay outermost, so that their kernels are laid out once.
struct Place {
  int64_t group, partial, b, b_end, t, rows, head, heads, c, channels;
  // of the sentence that `enter` was last called with: its length, the end of the unit's positions, the row and the
  // number for random.h of its position 0, and the step from row to row and from number to number
  int64_t T, t_end, row_0, number_0, row_step, number_step;

  Place(const Conv& conv, const Units& units, int64_t unit) {
    group = units.wide ? unit / units.partials : unit % units.groups;
    partial = units.wide ? unit % units.partials : unit / units.groups;
    if (units.pieces != nullptr) {
      const Piece& piece = units.pieces[partial];
      b = piece.b, b_end = piece.b_end, t = piece.t, rows = piece.rows;
    } else {
      b = partial % units.batches * units.sentences;
      b_end = b + units.sentences < conv.B ? b + units.sentences : conv.B;
      t = partial / units.batches * units.rows, rows = units.rows;
    }
    row_step = conv.step, number_step = conv.B;
    head = group * units.heads;
    heads = head + units.heads < conv.H ? units.heads : conv.H - head;
    c = head * (conv.C / conv.H), channels = heads * (conv.C / conv.H);
  }

  void enter(const Conv& conv, int64_t sentence) {
    const bool packed = conv.offsets != nullptr;
    row_0 = packed ? conv.offsets[sentence] : sentence * conv.sentence, number_0 = packed ? row_0 : sentence;
    T = packed ? conv.offsets[sentence + 1] - row_0 : conv.T;
    t_end = t + rows < T ? t + rows : T;
  }
  int64_t row(int64_t t) const { return row_0 + t * row_step; }
  int64_t number(int64_t t) const { return number_0 + t * number_step; }  // the same in every layout
};
