// Rows of kernels: softmax, its gradient, DropConnect. Inside the unnamed namespace.

// Logits to what the convolution uses, with L = round_up(K, lanes) numbers a row in `to`; those from K on are 0.
// `readable` numbers may be read from `from`, K at least.
template <class A, class S>
void kernel_row(const S* from, int64_t readable, int K, int L, bool softmax, A* to) {
  if (readable >= L) {
    convert(to, from, L);
  } else {
    convert(to, from, K);
  }
  const A none = softmax ? -__builtin_inf() : 0;
  for (int j = K; j < L; ++j) to[j] = none;
  if (!softmax) return;
  constexpr int n = kLanes<A>;
  Vec<A> most = load(to);
  for (int j = n; j < L; j += n) {
    const Vec<A> v = load(to + j);
    most = most > v ? most : v;
  }
  const Vec<A> top = Vec<A>{} + largest<A>(most);
  Vec<A> total{};
  for (int j = 0; j < L; j += n) {
    const Vec<A> e = exp_of(load(to + j) - top);
    store(to + j, e);
    total += e;
  }
  const A scale = 1 / sum<A>(total);
  for (int j = 0; j < L; j += n) store(to + j, load(to + j) * scale);
  if (!(scale == scale))
    for (int j = K; j < L; ++j) to[j] = 0;
}

// The gradient of the logits, where p are the weights before DropConnect and `grad` the gradient of those, both of L
// numbers, 0 from K on. In place.
template <class A>
void softmax_backward(const A* p, int L, A* grad) {
  constexpr int n = kLanes<A>;
  Vec<A> total{};
  for (int j = 0; j < L; j += n) total += load(p + j) * load(grad + j);
  const A inner = sum<A>(total);
  for (int j = 0; j < L; j += n) store(grad + j, load(p + j) * (load(grad + j) - inner));
}

// DropConnect's factors of the kernel at n = (t * B + b) * H + h: 0 or 1 / (1 - p). L numbers are written.
template <class A>
void keep_row(uint64_t seed, uint64_t n, float probability, int L, A* to) {
  constexpr int kBlocks = 8;  // blocks of four words, side by side in vectors
  const uint32_t threshold = static_cast<uint32_t>(static_cast<double>(probability) * 4294967296.0 + 0.5);
  const A kept = 1 / (1 - static_cast<A>(probability));
  for (int first = 0; first < L; first += 4 * kBlocks) {
    uint32_t words[4][kBlocks];
    uint32_t c0[kBlocks], c1[kBlocks], c2[kBlocks], c3[kBlocks];
    for (int l = 0; l < kBlocks; ++l) {
      c0[l] = static_cast<uint32_t>(n), c1[l] = static_cast<uint32_t>(n >> 32);
      c2[l] = static_cast<uint32_t>(first / 4 + l), c3[l] = 0;
    }
    uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < kPhiloxRounds; ++round) {
      for (int l = 0; l < kBlocks; ++l) {
        const uint64_t a = static_cast<uint64_t>(kPhiloxA) * c0[l], b = static_cast<uint64_t>(kPhiloxB) * c2[l];
        c0[l] = static_cast<uint32_t>(b >> 32) ^ c1[l] ^ key0;
        c1[l] = static_cast<uint32_t>(b);
        c2[l] = static_cast<uint32_t>(a >> 32) ^ c3[l] ^ key1;
        c3[l] = static_cast<uint32_t>(a);
      }
      key0 += kPhiloxKeyA, key1 += kPhiloxKeyB;
    }
    for (int l = 0; l < kBlocks; ++l) words[0][l] = c0[l], words[1][l] = c1[l], words[2][l] = c2[l], words[3][l] = c3[l];
    const int count = L - first < 4 * kBlocks ? L - first : 4 * kBlocks;
    for (int j = 0; j < count; ++j) to[first + j] = words[j % 4][j / 4] >= threshold ? kept : 0;
  }
}
