// The end of a step of beam search: stores the candidates that end, chooses those that go on, and reorders the rings;
// ops.search_step is the reference implementation. One block per sentence. A lane of its first warp holds the
// candidates `lane` and `beams + lane`, and the finished hypothesis of rank `lane`. Each block reads the step from its
// own element of clock, so that limits[0] can be written while other blocks still run.
#pragma once

#include "cuda/args.h"
#include "cuda/scalar.cuh"

namespace lightconv::cuda {

template <Case C> __device__ __forceinline__ void search_step(const SearchArgs& args, unsigned char* shared) {
  constexpr long long never = -1;
  constexpr unsigned int all = 0xffffffffu;
  int* from = reinterpret_cast<int*>(shared);  // (beams,): the beam that each new hypothesis continues
  const int lane = threadIdx.x % 32, beams = args.beams;
  const long long sentence = blockIdx.x, first = sentence * beams, step = args.clock[sentence];
  if (threadIdx.x < 32) {
    const float none = -__int_as_float(0x7f800000);  // -infinity
    const bool present = lane < beams, open = args.open[sentence];
    float value[2] = {none, none};
    long long word[2] = {}, parent[2] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const long long at = 2 * first + half * beams + lane;
      if (present) value[half] = args.values[at], word[half] = args.candidates[at], parent[half] = args.origins[at];
    }
    long long held_step = never, held_row = 0;
    float held_total = 0;
    double held = none, rank = 0;
    if (present) {
      const long long at = first + lane;
      held_step = args.steps[at], held_row = args.rows[at], held_total = args.totals[at], held = args.ranks[at];
    }
    int admitted = 2 * beams;
    if (args.stepwise) {
      rank = value[0] / args.penalties[step];
      int better = 0;
      for (int j = 0; j < beams; ++j) better += __shfl_sync(all, held, j) >= rank;
      const bool has_place = better < beams - lane && value[0] != none;
      admitted = -lanes_max<32>(present && !has_place ? -lane : -beams);
      if (lane >= admitted) value[0] = none;
      value[1] = none;
    }
    const int ends[2] = {value[0] != none && word[0] == args.eos, value[1] != none && word[1] == args.eos};
    const double ended = ends[0] && open ? rank : none;
    // before: candidates that end before this one. known: finished hypotheses. held_place, place: the new ranks, from
    // 0, of the finished hypothesis that the lane holds and of the candidate that ends.
    int ends_in_first = 0, before[2] = {}, known = 0, held_place = 0, place = 0;
    for (int j = 0; j < beams; ++j) {
      const bool earlier = j < lane;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int other = __shfl_sync(all, ends[half], j);
        before[half] += earlier && other;
        if (half == 0) ends_in_first += other;
      }
      known += __shfl_sync(all, held_step, j) != never;
      const double other_held = __shfl_sync(all, held, j), other = __shfl_sync(all, ended, j);
      held_place += (other > held) + (other_held > held || (other_held == held && earlier));
      place += (other_held >= ended) + (other > ended || (other == ended && earlier));
    }
    if (open) known += ends_in_first;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int to = (half == 0 ? 0 : beams - ends_in_first) + lane - before[half];
      if (!present || ends[half] || to >= beams) continue;
      const long long at = first + to, table = step * args.N + at, row = first + parent[half];
      args.newest[at] = args.words[table] = word[half];
      args.scores[at] = args.sums[table] = value[half];
      args.order[at] = args.parents[table] = row;
      from[to] = static_cast<int>(parent[half]);
    }
    __syncwarp();  // what has ended and what is open have been read
    const auto keep = [&](int to, long long at_step, long long row, float total, double its_rank) {
      if (!present || to >= beams) return;
      const long long at = first + to;
      args.steps[at] = at_step, args.rows[at] = row, args.totals[at] = total, args.ranks[at] = its_rank;
    };
    keep(held_place, held_step, held_row, held_total, held);
    keep(place, ended != none ? step : never, first + parent[0], value[0], ended);
    const bool goes_on = args.stepwise ? known == 0 || admitted > ends_in_first
                                       : ends_in_first == 0 || (step < args.limits[2] && known < beams);
    if (lane == 0) args.open[sentence] = open && goes_on;
  }
  __syncthreads();
  const int together = 32 / beams, own = lane % beams;  // slots per warp at a time; some of the last lanes may be idle
  for (int begin = threadIdx.x / 32 * together; begin < args.slots; begin += SEARCH_THREADS / 32 * together) {
    const int slot = begin + lane / beams;
    const bool has = lane / beams < together && slot < args.slots;
    int* row = args.ancestors + static_cast<long long>(slot) * args.N + first;
    const int ancestor = has ? row[from[own]] : 0;
    __syncwarp();
    if (has) row[own] = ancestor;
  }
  if (threadIdx.x == 0) {
    args.clock[sentence] = step + 1;
    if (sentence == 0) args.limits[0] = step + 1;
  }
}

}  // namespace lightconv::cuda
