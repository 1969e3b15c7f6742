// Jumps, barriers, and collectives of a warp's lanes.
#include "tests/cuda_interpreter/ptx.h"
#include "tests/cuda_interpreter/warp.h"

namespace interpreter {
namespace {

using std::string_view;

void jump(Warp& w, const Instr& in, uint32_t mask) {
  const int to = int(in.number);
  if (to < w.pc) w.block->count_jump(w);
  if (mask == w.active) {
    w.pc = to;
    if (!w.others.empty()) w.regroup();
    return;
  }
  w.others.push_back({to, mask, false});
  w.active &= ~mask;
  w.regroup();
}
void leave(Warp& w, const Instr&, uint32_t mask) { w.leave(mask); }
void nothing(Warp&, const Instr&, uint32_t) {}

// A barrier of the block: list has the registers of its number and its threads.
void barrier(Warp& w, const Instr& in, uint32_t mask) {
  if (!w.together(w.alive, mask)) return;
  const uint32_t number = w.at<uint32_t>(in.list[0])[std::countr_zero(mask)];
  if (number > 15) w.fail("barrier " + std::to_string(number) + " does not exist");
  w.barrier = int(number);
  w.barrier_threads = in.list.size() > 1 ? w.at<uint32_t>(in.list[1])[std::countr_zero(mask)] : 0;
  w.reduction = in.d ? &in : nullptr;
  w.state = Warp::State::at_barrier;
}

// Checks that all members of a collective are here and name the same members.
bool gathered(Warp& w, uint32_t reg, uint32_t mask) {
  const uint32_t members = w.at<uint32_t>(reg)[std::countr_zero(mask)];
  for (uint32_t m = mask; m; m &= m - 1)
    if (w.at<uint32_t>(reg)[std::countr_zero(m)] != members) return w.wait_for_lanes(), false;
  if (mask & ~members) {
    w.fail("a lane is not among the members that it names");
  }
  if (members & ~w.alive & (w.block->launch->block.count() > uint64_t(w.index) * 32 + 31 ? ~0u : 0u))
    w.fail("waits for lanes that have ended");
  if (!w.together(members, mask)) return false;
  w.block->shared.order_warp(w.index);
  return true;
}
void warp_barrier(Warp& w, const Instr& in, uint32_t mask) { gathered(w, in.a, mask); }

enum class Shuffle { index, up, down, exchange };

// a: the value, b: the lane or distance, c: the bounds; list: members, and a predicate that is set
// if the source is within bounds.
template <Shuffle how>
void shuffle(Warp& w, const Instr& in, uint32_t mask) {
  if (!gathered(w, in.list[0], mask)) return;
  uint32_t values[32], inside = 0;
  const uint32_t *a = w.at<uint32_t>(in.a), *b = w.at<uint32_t>(in.b), *c = w.at<uint32_t>(in.c);
  for (uint32_t m = mask; m; m &= m - 1) {
    const int lane = std::countr_zero(m);
    const int by = int(b[lane] & 31), clamp = int(c[lane] & 31), segment = int(c[lane] >> 8 & 31);
    const int most = (lane & segment) | (clamp & ~segment), least = lane & segment;
    int from = 0;
    bool within = false;
    if (how == Shuffle::up) from = lane - by, within = from >= most;
    if (how == Shuffle::down) from = lane + by, within = from <= most;
    if (how == Shuffle::exchange) from = lane ^ by, within = from <= most;
    if (how == Shuffle::index) from = least | (by & ~segment), within = from <= most;
    if (!within) from = lane;
    if (!(mask >> from & 1))
      w.fail("takes a value from lane " + std::to_string(from) + ", which does not take part", lane);
    values[lane] = a[from];
    inside |= uint32_t(within) << lane;
  }
  lanes(mask, [&](int i) { w.at<uint32_t>(in.d)[i] = values[i]; });
  if (in.list.size() < 2) return;
  uint32_t& p = *w.at<uint32_t>(in.list[1]);
  p = (p & ~mask) | (inside & mask);
}

// number: bit 2 negates the predicate a. list: members.
enum class Vote { ballot, any, all, same };
template <Vote how>
void vote(Warp& w, const Instr& in, uint32_t mask) {
  if (!gathered(w, in.list[0], mask)) return;
  const uint32_t p = (*w.at<uint32_t>(in.a) ^ (in.number & 4 ? ~0u : 0u)) & mask;
  if (how == Vote::ballot) return lanes(mask, [&](int i) { w.at<uint32_t>(in.d)[i] = p; });
  const bool yes = how == Vote::any ? p != 0 : how == Vote::all ? p == mask : p == 0 || p == mask;
  uint32_t& d = *w.at<uint32_t>(in.d);
  d = (d & ~mask) | (yes ? mask : 0);
}

template <class T>
void match_any(Warp& w, const Instr& in, uint32_t mask) {
  if (!gathered(w, in.list[0], mask)) return;
  const T* a = w.at<T>(in.a);
  for (uint32_t m = mask; m; m &= m - 1) {
    const int lane = std::countr_zero(m);
    uint32_t equal = 0;
    for (uint32_t n = mask; n; n &= n - 1)
      equal |= uint32_t(a[std::countr_zero(n)] == a[lane]) << std::countr_zero(n);
    w.at<uint32_t>(in.d)[lane] = equal;
  }
}

template <class F>
void reduce(Warp& w, const Instr& in, uint32_t mask) {
  if (!gathered(w, in.list[0], mask)) return;
  const uint32_t* a = w.at<uint32_t>(in.a);
  uint32_t all = a[std::countr_zero(mask)];
  for (uint32_t m = mask & (mask - 1); m; m &= m - 1) all = F{}(all, a[std::countr_zero(m)]);
  lanes(mask, [&](int i) { w.at<uint32_t>(in.d)[i] = all; });
}

void active_mask(Warp& w, const Instr& in, uint32_t mask) {
  lanes(mask, [&](int i) { w.at<uint32_t>(in.d)[i] = mask; });
}

// Fence of shared memory between this thread's writes and products of warpgroups.
void publish(Warp& w, const Instr&, uint32_t mask) {
  if (mask == w.alive) w.published.push_back(w.block->shared.tick());
}

bool decode_barrier(Decoder& d, const Statement& s, Instr& in) {
  const auto& o = s.operands;
  if (s.has("warp")) return in.run = &warp_barrier, in.a = d.read(o[0], "u32"), true;
  in.run = &barrier;
  size_t first = 0;
  if (s.has("red")) {
    if (s.type() != "pred") return false;
    bool negated = false;
    in.d = d.write(o[0]), in.a = d.predicate(o.back(), negated);
    in.number = (s.has("or") ? 1 : 0) | (negated ? 4 : 0);
    first = 1;
  } else if (!s.has("sync")) {
    return false;
  }
  const size_t last = o.size() - (s.has("red") ? 1 : 0);
  for (size_t i = first; i < last; ++i) in.list.push_back(d.read(o[i], "u32"));
  return true;
}

bool decode_shuffle(Decoder& d, const Statement& s, Instr& in) {
  const auto& o = s.operands;
  const size_t bar = o[0].find('|');
  in.d = d.write(o[0].substr(0, bar)), in.a = d.read(o[1], "u32"), in.b = d.read(o[2], "u32"),
  in.c = d.read(o[3], "u32");
  in.list = {d.read(o[4], "u32")};
  if (bar != std::string::npos) in.list.push_back(d.write(o[0].substr(bar + 1)));
  in.run = s.has("bfly")   ? &shuffle<Shuffle::exchange>
           : s.has("up")   ? &shuffle<Shuffle::up>
           : s.has("down") ? &shuffle<Shuffle::down>
                           : &shuffle<Shuffle::index>;
  return s.has("sync");
}

}  // namespace

bool decode_warp(Decoder& d, const Statement& s, Instr& in) {
  const string_view name = s.parts[0];
  const auto& o = s.operands;
  if (name == "bra") return in.run = &jump, true;
  if (name == "ret" || name == "exit") return in.run = &leave, true;
  if (name == "bar" || name == "barrier") return decode_barrier(d, s, in);
  if (name == "shfl") return decode_shuffle(d, s, in);
  if (name == "membar" || name == "nanosleep" || s.op.starts_with("fence.acq_rel") ||
      s.op.starts_with("fence.sc"))
    return in.run = &nothing, true;
  if (s.op.starts_with("fence.proxy.async")) return in.run = &publish, true;
  if (name == "activemask") return in.run = &active_mask, in.d = d.write(o[0]), true;
  if (name == "vote") {
    bool negated = false;
    in.d = d.write(o[0]), in.a = d.predicate(o[1], negated), in.number = negated ? 4 : 0;
    in.list = {d.read(o[2], "u32")};
    in.run = s.has("ballot") ? &vote<Vote::ballot>
             : s.has("any")  ? &vote<Vote::any>
             : s.has("all")  ? &vote<Vote::all>
                             : &vote<Vote::same>;
    return s.has("sync");
  }
  if (name == "match" && s.has("any")) {
    in.d = d.write(o[0]), in.a = d.read(o[1], s.type()), in.list = {d.read(o[2], "u32")};
    in.run = s.type() == "b64" ? &match_any<uint64_t> : &match_any<uint32_t>;
    return true;
  }
  if (name == "redux") {
    in.d = d.write(o[0]), in.a = d.read(o[1], s.type()), in.list = {d.read(o[2], "u32")};
    const bool less = s.type() == "s32";
    in.run =
        s.has("add")   ? Instr::Run(&reduce<decltype([](uint32_t a, uint32_t b) { return a + b; })>)
        : s.has("and") ? &reduce<decltype([](uint32_t a, uint32_t b) { return a & b; })>
        : s.has("or")  ? &reduce<decltype([](uint32_t a, uint32_t b) { return a | b; })>
        : s.has("xor") ? &reduce<decltype([](uint32_t a, uint32_t b) { return a ^ b; })>
        : s.has("min")
            ? (less ? Instr::Run(
                          &reduce<decltype([](uint32_t a, uint32_t b) { return int(a) < int(b) ? a : b; })>)
                    : &reduce<decltype([](uint32_t a, uint32_t b) { return a < b ? a : b; })>)
        : s.has("max")
            ? (less ? Instr::Run(
                          &reduce<decltype([](uint32_t a, uint32_t b) { return int(a) > int(b) ? a : b; })>)
                    : &reduce<decltype([](uint32_t a, uint32_t b) { return a > b ? a : b; })>)
            : nullptr;
    return in.run != nullptr;
  }
  return false;
}

}  // namespace interpreter
