// Cuts a convolution into units of work: the place of a unit in the tensors, its scratch memory, and the copies of rows
// between tensors and scratch memory.

// ---- How the work is cut ----

constexpr int64_t kChunk = 128;     // positions of a unit: many, compared with the K - 1 rows it shares with neighbours
constexpr int64_t kChannels = 256;  // channels of a unit: rows that reach full memory speed; a unit fits a core's cache
constexpr int64_t kUnits = 64;      // if there are fewer units, smaller ones are made, for machines of many threads
constexpr int64_t kAhead = 4;       // prefetch distance in rows
constexpr int kFewTaps = 8;         // largest K of the kernels that have K as a template argument
constexpr int kFewChannels = 8;     // with kernels per position, lanes are heads if R = C / H is below this
constexpr int kProductRows = LIGHTCONV_BITS == 512 ? 8 : 4;  // positions per tile of inner_products

// Calls call<K>(), K = 1..kFewTaps.
template <class Call>
inline void by_taps(int64_t K, Call call) {
  by_number<8, 7, 6, 5, 4, 3, 2, 1>(K, call);
}

// Hands out memory that a thread keeps from unit to unit, in arrays that start at multiples of 64 bytes.
class Arena {
 public:
  explicit Arena(void* memory) : next_((reinterpret_cast<uintptr_t>(memory) + 63) / 64 * 64) {}
  template <class A>
  A* take(int64_t count) {
    A* array = reinterpret_cast<A*>(next_);
    next_ += round_up(count * static_cast<int64_t>(sizeof(A)), 64) + 64;  // the gap avoids cache conflicts
    return array;
  }
  uintptr_t used() const { return next_ + 64; }

 private:
  uintptr_t next_;
};

// Rows of x and of the gradient are packed in blocks. Rows of a block are whole vectors. Lanes::channels: one block per
// head, with its R channels. channels_of_heads: one block with all channels. heads: R blocks, block r with channel r of
// each head. The result of a position is one row, with a row of each block.
template <class A>
struct Scratch {
  int64_t row;         // numbers of a row of a block
  int64_t block;       // numbers of a block
  int64_t result_row;  // numbers of a row of results, in all blocks
  int64_t taps;        // numbers of a kernel: K, rounded up to whole vectors
  A *x, *gradient;     // packed rows
  A* result;           // of a forward pass; or gradients of x, with those of a state and of positions outside
  A* line;             // buffer for a row or a few vectors

  // One kernel per position and head, (head, position, taps), with `kernel_block` numbers per head.
  int64_t kernel_block;
  A *kernels, *factors, *used_kernels;  // normalised; DropConnect's factors; their product

  // The kernels of LightConv: by channel (K, row); with DropConnect (head, taps), or (head, K) if lanes are heads.
  A *kernels_by_channel, *shared_kernels;

  // The gradients of kernels.
  A* inputs_by_channel;  // the transposed inputs of a head, (row, `positions`)
  A* products;           // inner products of gradients and inputs, (kProductRows, product_row)
  A* kernel_gradients;   // (position, head, taps), or by channel (K, row)
  int64_t positions, product_row;
  uintptr_t end;

  Scratch(const Conv& conv, const Units& units, bool backward, Arena arena) {
    constexpr int n = kLanes<A>;
    const int64_t R = conv.C / conv.H, state = conv.state != nullptr ? conv.K - 1 : 0;
    const int64_t seen = units.rows + conv.K - 1, rows = seen < state + conv.T ? seen : state + conv.T;
    const bool by_heads = units.lanes == Lanes::heads;
    const int64_t blocks = units.lanes == Lanes::channels ? units.heads : by_heads ? R : 1;
    row = round_up(units.lanes == Lanes::channels ? R : by_heads ? units.heads : units.heads * R, n);
    block = rows * row, result_row = blocks * row;
    taps = round_up(conv.K, n), kernel_block = rows * taps;
    product_row = round_up(conv.K + kProductRows - 1, n), positions = round_up(units.rows + product_row + n, n);
    x = arena.take<A>(blocks * block);
    const int64_t outside = !backward ? 0 : by_heads ? 2 * (conv.K - 1) : state;
    result = arena.take<A>((units.rows + outside) * result_row);
    line = arena.take<A>(by_heads ? (conv.K > R ? conv.K : R) * row : taps * n);
    gradient = kernels = factors = used_kernels = kernels_by_channel = shared_kernels = nullptr;
    inputs_by_channel = products = kernel_gradients = nullptr;
    if (units.lanes == Lanes::channels_of_heads) kernels_by_channel = arena.take<A>(conv.K * row);
    if (by_heads && !conv.dynamic) shared_kernels = arena.take<A>(conv.K * row);
    const bool kernel_rows = units.by_position && !by_heads;
    if (kernel_rows) {
      kernels = used_kernels = arena.take<A>(blocks * kernel_block), shared_kernels = arena.take<A>(blocks * taps);
      if (conv.dropconnect > 0)
        factors = arena.take<A>(blocks * kernel_block), used_kernels = arena.take<A>(blocks * kernel_block);
    }
    if (backward) {
      gradient = arena.take<A>(blocks * block);
      if (kernel_rows) {
        inputs_by_channel = arena.take<A>(row * positions);
        products = arena.take<A>(kProductRows * product_row + n);  // + n: row i is read from number i on
        kernel_gradients = arena.take<A>(units.rows * units.heads * taps);
      } else {
        kernel_gradients = arena.take<A>(conv.K * row);
      }
    }
    end = arena.used();
  }
};

template <class A>
Units units_of(const Conv& conv, bool backward) {
  Units units{};
  const int64_t R = conv.C / conv.H;
  units.by_position = conv.dynamic || conv.dropconnect > 0;
  units.lanes = units.by_position ? (R < kFewChannels && conv.K <= kFewTaps ? Lanes::heads : Lanes::channels)
                                  : (R < kLanes<A> ? Lanes::channels_of_heads : Lanes::channels);
  const bool by_heads = units.lanes == Lanes::heads;  // most of its reads are kernels, in rows as long as possible
  const int64_t most = kChannels / R < 1 ? 1 : by_heads ? round_up(kChannels / R, kLanes<A>) : kChannels / R;
  units.heads = most < conv.H ? most : conv.H;
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
      if (units.count >= kUnits || by_heads || units.heads * R <= kChannels / 4 || units.heads == 1) break;
    }
    if (units.count >= kUnits || chunk <= 32) break;
  }
  units.scratch = Scratch<A>(conv, units, backward, Arena(nullptr)).end;
  return units;
}

// The place of a unit in the tensors. If kernels are laid out by channel, groups of heads are the outermost loop over
// units, so that each group's kernels are laid out once.
struct Place {
  int64_t group, partial;        // of Units::groups and Units::partials
  int64_t b, b_end;              // sentences
  int64_t t, t_end, rows;        // positions t..t_end of the sentence of the last `enter`; at most `rows`
  int64_t head, heads;           // the first head, the number of heads
  int64_t channel, channels;     // the first channel, the number of channels
  int64_t blocks, width;         // blocks of packed rows, and numbers of a tensor's row per block
  int64_t begin;                 // position of the first input: 0, or -padding_l with a state
  // Of the sentence: its length T; the inputs first..last that positions t..t_end read; the tensor's row and the number
  // in random.h of its position 0, and the strides of both from position to position.
  int64_t T, first, last, sentence, row_0, number_0, row_step, number_step;

  Place(const Conv& conv, const Units& units, int64_t unit) {
    const int64_t R = conv.C / conv.H;
    const bool by_group = units.lanes == Lanes::channels_of_heads;
    group = by_group ? unit / units.partials : unit % units.groups;
    partial = by_group ? unit % units.partials : unit / units.groups;
    if (units.pieces != nullptr) {
      const Piece& piece = units.pieces[partial];
      b = piece.b, b_end = piece.b_end, t = piece.t, rows = piece.rows;
    } else {
      b = partial % units.batches * units.sentences;
      b_end = b + units.sentences < conv.B ? b + units.sentences : conv.B;
      t = partial / units.batches * units.rows, rows = units.rows;
    }
    row_step = conv.step, number_step = conv.B, begin = conv.state != nullptr ? -conv.padding_l : 0;
    head = group * units.heads;
    heads = head + units.heads < conv.H ? units.heads : conv.H - head;
    channel = head * R, channels = heads * R;
    blocks = units.lanes == Lanes::channels ? heads : units.lanes == Lanes::heads ? R : 1;
    width = channels / blocks;
  }

  void enter(const Conv& conv, int64_t b) {
    const bool packed = conv.offsets != nullptr;
    sentence = b, row_0 = packed ? conv.offsets[b] : b * conv.sentence, number_0 = packed ? row_0 : b;
    T = packed ? conv.offsets[b + 1] - row_0 : conv.T;
    narrow(conv, t, t + rows < T ? t + rows : T);
  }
  // Restricts the place to the positions from..to of the sentence.
  void narrow(const Conv& conv, int64_t from, int64_t to) {
    t = from, t_end = to, first = t - conv.padding_l > begin ? t - conv.padding_l : begin;
    last = t_end - conv.padding_l + conv.K - 1 < T ? t_end - conv.padding_l + conv.K - 1 : T;
  }
  // Returns the place of the sentence's state in the state or in its gradient.
  Place state(const Conv& conv) const {
    Place place = *this;
    place.t = begin, place.t_end = 0, place.row_step = conv.state_step;
    place.row_0 = sentence * conv.state_sentence - begin * conv.state_step;
    return place;
  }
  int64_t row(int64_t t) const { return row_0 + t * row_step; }
  int64_t number(int64_t t) const { return number_0 + t * number_step; }  // does not depend on the memory layout
};

// Calls act(place) on each sentence of the units begin..end, and enter(place) when a group of heads begins. With few
// taps, positions that read a state are a separate, first place, so that the inputs of the others are used in place.
template <class Enter, class Act>
void each_sentence(const Conv& conv, const Units& units, int64_t begin, int64_t end, Enter enter, Act act) {
  int64_t group = -1;
  for (int64_t unit = begin; unit < end; ++unit) {
    Place place(conv, units, unit);
    if (place.group != group) enter(place), group = place.group;
    const bool apart = conv.state != nullptr && place.t == 0 && conv.K <= kFewTaps && units.lanes != Lanes::heads;
    for (int64_t b = place.b; b < place.b_end; ++b) {
      place.enter(conv, b);
      if (!apart || place.t_end < conv.K) {
        act(place);
        continue;
      }
      Place part = place;
      for (const int64_t end : {conv.padding_l, place.t_end}) part.narrow(conv, part.t, end), act(part), part.t = end;
    }
  }
}

// ---- Rows between tensors and scratch ----

// Rows of x or of the gradient, in the tensor itself or packed in scratch memory.
template <class A>
struct Rows {
  const A* data;  // row of position `first`
  int64_t first, last;
  int64_t row, block;  // strides in numbers, from position to position and from block to block
  const A* at(int64_t position) const { return data + (position - first) * row; }  // it need not exist
};

// Calls act(row, t) for the positions begin..end, where `row` points to the place's first channel in the tensor.
// Prefetches later rows.
template <bool Write, class S, class Act>
inline void each_row(const Conv& conv, const Place& place, S* tensor, int64_t begin, int64_t end, Act act) {
  S* row = tensor + place.row(begin) * conv.C + place.channel;
  const int64_t step = place.row_step * conv.C;
  for (int64_t t = begin; t < end; ++t, row += step) {
    if (t + kAhead < end) ask_for<Write>(row + kAhead * step, place.channels);
    act(row, t);
  }
}

// For heads as lanes and several channels per head: split_row copies a tensor's row to a row of each block, join_row
// copies it back.
template <class A, class S>
void split_row(const S* row, const Scratch<A>& scratch, const Place& place, A* to) {
  convert(scratch.line, row, place.channels);
  by_taps(place.blocks, [&]<int R>() {
    for (int64_t h = 0; h < scratch.row; h += kLanes<A>) {
      Vec<A> lanes[R];
      split<A, R>(scratch.line + h * R, lanes);
      for (int r = 0; r < R; ++r) store(to + r * scratch.block + h, lanes[r]);
    }
  });
}

template <class A, class S>
void join_row(const A* result, const Scratch<A>& scratch, const Place& place, S* row) {
  by_taps(place.blocks, [&]<int R>() {
    for (int64_t h = 0; h < scratch.row; h += kLanes<A>) {
      Vec<A> lanes[R];
      for (int r = 0; r < R; ++r) lanes[r] = load(result + r * scratch.row + h);
      join<A, R>(lanes, scratch.line + h * R);
    }
  });
  convert(row, scratch.line, place.channels);
}

// Packs rows of the positions begin..end of a tensor (T, B, C). Lanes beyond a block's width become 0, except with
// split_row, where they are not used.
template <class A, class S>
void pack(const Conv& conv, const Units& units, const Scratch<A>& scratch, const void* tensor, const Place& place,
          int64_t begin, int64_t end, A* to) {
  each_row<false>(conv, place, static_cast<const S*>(tensor), begin, end, [&](const S* row, int64_t) {
    if (units.lanes == Lanes::heads && place.blocks > 1) {
      split_row<A>(row, scratch, place, to);
    } else {
      for (int64_t block = 0; block < place.blocks; ++block) {
        A* packed = to + block * scratch.block;
        convert(packed, row + block * place.width, place.width);
        for (int64_t c = place.width; c < scratch.row; ++c) packed[c] = 0;
      }
    }
    to += scratch.row;
  });
}

// Copies the results of the place's positions to a tensor (T, B, C).
template <class A, class S>
void unpack(const Conv& conv, const Units& units, const Scratch<A>& scratch, const Place& place, const A* result,
            void* tensor) {
  each_row<true>(conv, place, static_cast<S*>(tensor), place.t, place.t_end, [&](S* row, int64_t) {
    if (units.lanes == Lanes::heads && place.blocks > 1) {
      join_row<A>(result, scratch, place, row);
    } else if (place.width == scratch.row) {
      convert(row, result, place.channels);
    } else {
      for (int64_t block = 0; block < place.blocks; ++block)
        convert(row + block * place.width, result + block * scratch.row, place.width);
    }
    result += scratch.result_row;
  });
}

// Returns true if the blocks' rows are whole vectors in the tensors themselves. Then results are written in place, and
// with few taps inputs are read in place: copies would take longer. With channels_of_heads this excludes a last group
// that has fewer heads than the others, since rows of a whole group's width are written.
template <class A, class S>
bool in_place(const Units& units, const Place& place) {
  const bool apart = units.lanes == Lanes::heads && place.blocks > 1;
  const bool whole = units.lanes != Lanes::channels_of_heads || place.heads == units.heads;
  return std::is_same_v<A, S> && !apart && whole && place.width % kLanes<A> == 0;
}

// Calls write(out, out_row), which writes the results of the place's positions to the tensor (T, B, C) or to scratch
// memory; these are then copied to the tensor.
template <class A, class S, class Write>
void write_results(const Conv& conv, const Units& units, const Scratch<A>& scratch, const Place& place, void* tensor,
                   Write write) {
  if (in_place<A, S>(units, place)) {
    write(static_cast<A*>(tensor) + place.row(place.t) * conv.C + place.channel, place.row_step * conv.C);
  } else {
    write(scratch.result, scratch.result_row);
    unpack<A, S>(conv, units, scratch, place, scratch.result, tensor);
  }
}

// Returns the inputs first..last of a place, including those of a state.
template <class A, class S>
Rows<A> rows_of(const Conv& conv, const Units& units, const Scratch<A>& scratch, const Place& place, const void* tensor,
                int64_t first, int64_t last, bool packed, A* room) {
  if (!packed)
    return {static_cast<const A*>(tensor) + place.row(first) * conv.C + place.channel, first, last,
            place.row_step * conv.C, scratch.row};
  const int64_t begin = first > 0 ? first : 0;  // first row in the tensor, not in the state
  pack<A, S>(conv, units, scratch, conv.state, place.state(conv), first, begin, room);
  pack<A, S>(conv, units, scratch, tensor, place, begin, last, room + (begin - first) * scratch.row);
  return {room, first, last, scratch.row, scratch.block};
}
