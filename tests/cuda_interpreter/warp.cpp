#include "tests/cuda_interpreter/warp.h"

#include <cxxabi.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <map>
#include <memory>

namespace interpreter {
namespace {

constexpr uint64_t kMostJumps = uint64_t{1} << 32;

std::string readable(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), std::free);
  return text ? text.get() : name;
}

std::string words(Dim d) {
  return "(" + std::to_string(d.x) + ", " + std::to_string(d.y) + ", " + std::to_string(d.z) + ")";
}

std::string hex(uint32_t mask) {
  char text[16];
  std::snprintf(text, sizeof text, "%08x", mask);
  return text;
}

}  // namespace

void Warp::fail(const std::string& what, int lane) const {
  const Kernel& k = *block->launch->kernel;
  const Dim b = block->launch->block;
  std::string who = "warp " + std::to_string(index);
  if (lane >= 0) {
    const uint32_t t = uint32_t(thread(lane));
    who = "thread " + words({t % b.x, t / b.x % b.y, t / b.x / b.y});
  }
  throw Defect(readable(k.name) + ", block " + words(block->index) + ", " + who + ": " + what + "\n    at " +
               k.where(std::max(pc - 1, 0)));
}

// The group with the smallest place that does not wait runs next; others at its place join it.
void Warp::regroup() {
  if (active) others.push_back({pc, active, false});
  std::sort(others.begin(), others.end(), [](const Group& x, const Group& y) { return x.pc < y.pc; });
  size_t kept = 0;
  for (size_t i = 0; i < others.size(); ++i)
    if (kept > 0 && others[kept - 1].pc == others[i].pc)
      others[kept - 1].lanes |= others[i].lanes, others[kept - 1].waits = false;
    else
      others[kept++] = others[i];
  others.resize(kept);
  const auto next = std::find_if(others.begin(), others.end(), [](const Group& g) { return !g.waits; });
  if (next == others.end()) {
    std::string all;
    for (const Group& g : others)
      all += "\n    lanes " + hex(g.lanes) + " at " + block->launch->kernel->where(g.pc);
    pc = others.front().pc + 1;
    fail("its lanes wait for each other at different instructions:" + all);
  }
  pc = next->pc, active = next->lanes;
  others.erase(next);
  meet = INT_MAX;
  for (const Group& g : others)
    if (g.pc > pc) meet = std::min(meet, g.pc);
}

void Warp::wait_for_lanes() {
  others.push_back({pc - 1, active, true});
  active = 0;
  regroup();
}

bool Warp::together(uint32_t members, uint32_t here) {
  if ((members & alive & ~here) == 0) return true;
  wait_for_lanes();
  return false;
}

void Warp::leave(uint32_t lanes) {
  alive &= ~lanes, active &= ~lanes;
  for (Group& g : others) g.waits = false;  // the conditions of waiting groups may have changed
  if (active) return;
  if (others.empty())
    state = State::done;
  else
    regroup();
}

// Tracks registers of products in flight, and the last write of each.
void Warp::track(const Instr& in) {
  ++steps;
  if (in.product) return;
  const auto check = [&](uint32_t reg, bool writes) {
    const uint8_t flags = held[reg / 64];
    if (flags & 1) fail("touches an accumulator of a product in flight");
    if (writes && flags & 2) fail("writes a register that a product in flight reads");
    if (writes) written[reg / 64] = steps;
  };
  check(in.d, true), check(in.a, false), check(in.b, false), check(in.c, false);
  for (const uint32_t reg : in.list) check(reg, in.writes_list);
}

template <bool kTracked>
void Warp::go() {
  const Instr* code = block->launch->kernel->code.data();
  const int end = int(block->launch->kernel->code.size());
  while (state == State::ready) {
    if (pc >= meet) regroup();
    if (pc >= end) {
      leave(active);
      continue;
    }
    const Instr& in = code[pc++];
    uint32_t mask = active;
    if (in.guard != Instr::kAlways) {
      const uint32_t p = *at<uint32_t>(in.guard);
      mask &= in.unless ? ~p : p;
      if (mask == 0) continue;
    }
    if constexpr (kTracked) track(in);
    in.run(*this, in, mask);
  }
}

void Warp::run() {
  if (block->launch->kernel->has_products)
    go<true>();
  else
    go<false>();
}

void Block::count_jump(const Warp& w) {
  if (++jumps > kMostJumps) w.fail("does not end");
}

// Value of a special register that is equal in every block, by warp and lane; null if it depends on
// the block.
using Special = uint32_t (*)(const Launch& l, uint32_t warp, uint32_t lane);
static Special special(const std::string& name) {
  static const std::map<std::string, Special> all{
      {"%tid.x", [](const Launch& l, uint32_t w, uint32_t i) { return (w * 32 + i) % l.block.x; }},
      {"%tid.y",
       [](const Launch& l, uint32_t w, uint32_t i) { return (w * 32 + i) / l.block.x % l.block.y; }},
      {"%tid.z",
       [](const Launch& l, uint32_t w, uint32_t i) { return (w * 32 + i) / l.block.x / l.block.y; }},
      {"%ntid.x", [](const Launch& l, uint32_t, uint32_t) { return l.block.x; }},
      {"%ntid.y", [](const Launch& l, uint32_t, uint32_t) { return l.block.y; }},
      {"%ntid.z", [](const Launch& l, uint32_t, uint32_t) { return l.block.z; }},
      {"%nctaid.x", [](const Launch& l, uint32_t, uint32_t) { return l.grid.x; }},
      {"%nctaid.y", [](const Launch& l, uint32_t, uint32_t) { return l.grid.y; }},
      {"%nctaid.z", [](const Launch& l, uint32_t, uint32_t) { return l.grid.z; }},
      {"%laneid", [](const Launch&, uint32_t, uint32_t i) { return i; }},
      {"%warpid", [](const Launch&, uint32_t w, uint32_t) { return w; }},
      {"%lanemask_eq", [](const Launch&, uint32_t, uint32_t i) { return 1u << i; }},
      {"%lanemask_lt", [](const Launch&, uint32_t, uint32_t i) { return (1u << i) - 1; }},
      {"%lanemask_le", [](const Launch&, uint32_t, uint32_t i) { return (2u << i) - 1; }},
      {"%lanemask_gt", [](const Launch&, uint32_t, uint32_t i) { return ~((2u << i) - 1); }},
      {"%lanemask_ge", [](const Launch&, uint32_t, uint32_t i) { return ~((1u << i) - 1); }},
  };
  const auto found = all.find(name);
  return found == all.end() ? nullptr : found->second;
}

// Sets the registers, and their contents that are equal in all blocks.
void Block::prepare(const Launch& l) {
  launch = &l;
  const Kernel& k = *l.kernel;
  const uint32_t threads = uint32_t(l.block.count()), count = (threads + 31) / 32;
  const size_t file_bytes = (k.file_bytes + 127) / 64 * 64;
  if (files_.size() < file_bytes * count + 64) files_.resize(file_bytes * count + 64);
  auto* files = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(files_.data()) + 63) / 64 * 64);
  params = l.params;
  for (int axis = 0; axis < 3; ++axis) {
    const auto reg = k.special.find(std::string("%ctaid.") + "xyz"[axis]);
    place_[axis] = reg == k.special.end() ? 0 : reg->second;
  }
  local.resize(size_t(k.local_bytes) * threads);
  shared.resize((k.shared_bytes + 1023) / 1024 * 1024 * (l.dynamic_shared > 0) +
                (l.dynamic_shared ? 0 : k.shared_bytes) + l.dynamic_shared);
  warps.resize(count);
  for (uint32_t i = 0; i < count; ++i) {
    Warp& w = warps[i];
    w.block = this, w.index = int(i), w.file = files + i * file_bytes;
    if (k.has_products) w.held.assign(file_bytes / 64, 0), w.written.assign(file_bytes / 64, 0);
    for (const Kernel::Constant& c : k.constants)
      for (int lane = 0; lane < 32; ++lane)
        if (c.bytes == 4)
          w.at<uint32_t>(c.at)[lane] = uint32_t(c.bits);
        else if (c.bytes == 8)
          w.at<uint64_t>(c.at)[lane] = c.bits;
        else
          w.at<uint16_t>(c.at)[lane] = uint16_t(c.bits);
    for (const auto& [offset, reg] : k.param_places)
      for (int lane = 0; lane < 32; ++lane)
        w.at<uint64_t>(reg)[lane] = reinterpret_cast<uint64_t>(params.data() + offset);
    if (k.local_at)
      for (int lane = 0; lane < 32; ++lane)
        w.at<uint64_t>(k.local_at)[lane] =
            reinterpret_cast<uint64_t>(local.data() + size_t(k.local_bytes) * size_t(w.thread(lane)));
    for (const auto& [name, reg] : k.special) {
      uint32_t* to = w.at<uint32_t>(reg);
      const Special value = special(name);
      if (value)
        for (uint32_t lane = 0; lane < 32; ++lane) to[lane] = value(l, i, lane);
    }
  }
}

void Block::run(Dim where, std::mt19937_64& random) {
  index = where, jumps = 0;
  shared.begin_block();
  const Kernel& k = *launch->kernel;
  const uint32_t threads = uint32_t(launch->block.count());
  std::vector<int> order(warps.size());
  for (Warp& w : warps) {
    const uint32_t left = threads - uint32_t(w.index) * 32;
    w.pc = 0, w.meet = INT_MAX, w.state = Warp::State::ready;
    w.active = w.alive = left >= 32 ? ~0u : (1u << left) - 1;
    w.others.clear(), w.copies.clear(), w.products.clear(), w.published.clear();
    std::fill(std::begin(w.copy_groups), std::end(w.copy_groups), 0);
    w.product_groups = w.fenced = w.steps = 0;
    if (k.has_products)
      std::fill(w.held.begin(), w.held.end(), 0), std::fill(w.written.begin(), w.written.end(), 0);
    for (const auto& [reg, place] :
         {std::pair{place_[0], where.x}, {place_[1], where.y}, {place_[2], where.z}})
      if (reg) std::fill_n(w.at<uint32_t>(reg), 32, place);
    order[size_t(w.index)] = w.index;
  }
  for (;;) {
    std::shuffle(order.begin(), order.end(), random);
    bool ran = false;
    for (const int i : order) {
      if (warps[size_t(i)].state != Warp::State::ready) continue;
      warps[size_t(i)].run();
      ran = true;
    }
    if (release()) continue;
    if (!ran) break;
  }
  for (const Warp& w : warps)
    if (w.state != Warp::State::done) stuck();
}

// Releases the warps at a barrier that all expected threads have reached.
bool Block::release() {
  bool any = false;
  for (int number = 0; number < 16; ++number) {
    uint32_t at = 0, come = 0, wanted = 0;
    bool ended = false;
    for (const Warp& w : warps) {
      ended = ended || w.state == Warp::State::done;
      if (w.state != Warp::State::at_barrier || w.barrier != number) continue;
      at |= 1u << w.index, come += uint32_t(std::popcount(w.alive)), wanted = w.barrier_threads;
    }
    if (!at) continue;
    if (wanted == 0) wanted = uint32_t(launch->block.count());
    if (come < wanted) continue;
    bool any_lane = false, all_lanes = true;
    for (Warp& w : warps)
      if (at >> w.index & 1 && w.reduction) {
        uint32_t p = *w.at<uint32_t>(w.reduction->a);
        if (w.reduction->number & 4) p = ~p;
        any_lane = any_lane || (p & w.alive), all_lanes = all_lanes && (p & w.alive) == w.alive;
      }
    for (Warp& w : warps)
      if (at >> w.index & 1) {
        if (w.reduction)
          *w.at<uint32_t>(w.reduction->d) = (w.reduction->number & 1 ? any_lane : all_lanes) ? ~0u : 0u;
        w.state = Warp::State::ready, w.reduction = nullptr;
      }
    shared.order(at);
    any = true;
  }
  return any;
}

void Block::stuck() const {
  const Warp* first = nullptr;
  std::string all;
  for (const Warp& w : warps) {
    if (w.state == Warp::State::at_barrier && !first) first = &w;
    all += "\n    warp " + std::to_string(w.index) +
           (w.state == Warp::State::done ? " has ended" : " waits at " + launch->kernel->where(w.pc - 1));
  }
  first->fail("not all threads of the block come to this barrier:" + all);
}

void execute(const Launch& l, std::mt19937_64& random) {
  thread_local Block block;
  block.prepare(l);
  const uint64_t count = l.grid.count();
  std::vector<uint32_t> order(count);
  for (uint64_t i = 0; i < count; ++i) order[i] = uint32_t(i);
  std::shuffle(order.begin(), order.end(), random);
  for (const uint32_t i : order)
    block.run({i % l.grid.x, i / l.grid.x % l.grid.y, i / l.grid.x / l.grid.y}, random);
}

}  // namespace interpreter
