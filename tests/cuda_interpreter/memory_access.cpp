// Loads, stores, atomics, and copies from global to shared memory.
#include <atomic>
#include <cstring>

#include "tests/cuda_interpreter/device_memory.h"
#include "tests/cuda_interpreter/ptx.h"
#include "tests/cuda_interpreter/warp.h"

namespace interpreter {
namespace {

using std::string_view;

template <bool kWide>
uint64_t place(Warp& w, const Instr& in, int lane) {
  return (kWide ? w.at<uint64_t>(in.a)[lane] : w.at<uint32_t>(in.a)[lane]) + uint64_t(in.number);
}

[[noreturn, gnu::noinline]] void fail_outside(Warp& w, int lane, const void* p, uint32_t bytes, bool write) {
  const std::string what = write ? "writes " : "reads ";
  if (reinterpret_cast<uintptr_t>(p) % bytes)
    w.fail(what + std::to_string(bytes) + " bytes at an address that is not aligned", lane);
  w.fail(what + device_memory().problem(p, bytes), lane);
}

// Access to a parameter, a GPU's memory, a thread's own, or a block's through a generic address.
// `bytes` is a power of two.
inline std::byte* outside(Warp& w, int lane, uint64_t address, uint32_t bytes, bool write) {
  auto* p = reinterpret_cast<std::byte*>(address);
  if (address & (bytes - 1)) [[unlikely]]
    fail_outside(w, lane, p, bytes, write);
  const auto within = [&](const std::byte* begin, size_t size) {
    return p >= begin && p + bytes <= begin + size;
  };
  Block& block = *w.block;
  if (within(block.params.data(), block.params.size())) {
    if (write) fail_outside(w, lane, p, bytes, write);
    return p;
  }
  if (device_memory().holds(p, bytes)) [[likely]]
    return p;
  const uint32_t own = block.launch->kernel->local_bytes;
  if (within(block.local.data() + size_t(own) * size_t(w.thread(lane)), own)) return p;
  if (block.shared.contains(p) && !write) {
    const uint32_t at = uint32_t(p - block.shared.data()) + SharedMemory::kBegin;
    return const_cast<std::byte*>(block.shared.read(w, lane, at, bytes));
  }
  fail_outside(w, lane, p, bytes, write);
}

// Returns the address if the lanes of a warp access `bytes` each, consecutively, in a GPU's memory;
// null otherwise, or if a closer check is needed.
template <bool kWide>
std::byte* side_by_side(Warp& w, const Instr& in, uint32_t mask, uint32_t bytes) {
  if (!kWide || mask != ~0u) return nullptr;
  const uint64_t* at = w.at<uint64_t>(in.a);
  bool apart = false;
  for (uint32_t i = 1; i < 32; ++i) apart |= at[i] != at[0] + i * bytes;
  auto* p = reinterpret_cast<std::byte*>(at[0] + uint64_t(in.number));
  if (apart || reinterpret_cast<uintptr_t>(p) & (bytes - 1)) return nullptr;
  return device_memory().holds(p, 32 * bytes) ? p : nullptr;
}

// Returns a block's shared memory and the lanes' addresses in it if only bounds are checked and all
// lanes are in bounds; null otherwise.
template <bool kWide>
std::byte* within_bounds(Warp& w, const Instr& in, uint32_t mask, uint32_t bytes, uint32_t (&at)[32]) {
  const SharedMemory& shared = w.block->shared;
  if (shared.checks() || shared.bytes() < bytes) return nullptr;
  const uint32_t most = shared.bytes() - bytes;
  uint32_t bad = 0;  // by lane, all of them in vector instructions
  for (int i = 0; i < 32; ++i) {
    at[i] = uint32_t(place<kWide>(w, in, i)) - SharedMemory::kBegin;  // large for smaller addresses
    bad |= uint32_t((at[i] > most) | ((at[i] & (bytes - 1)) != 0)) << i;
  }
  return bad & mask ? nullptr : shared.data();
}

// Pieces of a vector are consecutive in memory; S is the type in memory, R the register.
template <class S, class R, bool kShared, bool kWide>
void load(Warp& w, const Instr& in, uint32_t mask) {
  const uint32_t count = uint32_t(in.list.size());
  R* to[4];
  for (uint32_t k = 0; k < count; ++k) to[k] = w.at<R>(in.list[k]);
  if constexpr (kShared) {
    uint32_t at[32];
    if (const std::byte* begin = within_bounds<kWide>(w, in, mask, count * sizeof(S), at)) {
      for (uint32_t k = 0; k < count; ++k, begin += sizeof(S))
        lanes(mask, [begin, from = &at[0], d = to[k]](int i) {
          S x;
          std::memcpy(&x, begin + from[i], sizeof(S));
          d[i] = R(x);
        });
      return;
    }
  } else if (const std::byte* all = side_by_side<kWide>(w, in, mask, count * sizeof(S))) {
    const S* from = reinterpret_cast<const S*>(all);
    for (uint32_t k = 0; k < count; ++k)
      for (uint32_t lane = 0; lane < 32; ++lane) to[k][lane] = R(from[lane * count + k]);
    return;
  }
  for (uint32_t m = mask; m; m &= m - 1) {
    const int lane = std::countr_zero(m);
    const uint64_t at = place<kWide>(w, in, lane);
    const std::byte* from = kShared ? w.block->shared.read(w, lane, uint32_t(at), count * sizeof(S))
                                    : outside(w, lane, at, count * sizeof(S), false);
    for (uint32_t k = 0; k < count; ++k) {
      S x;
      std::memcpy(&x, from + k * sizeof(S), sizeof(S));
      to[k][lane] = R(x);  // signed types extend their sign
    }
  }
}

template <class S, class R, bool kShared, bool kWide>
void store(Warp& w, const Instr& in, uint32_t mask) {
  const uint32_t count = uint32_t(in.list.size());
  const R* from[4];
  for (uint32_t k = 0; k < count; ++k) from[k] = w.at<R>(in.list[k]);
  if constexpr (kShared) {
    uint32_t at[32];
    if (std::byte* begin = within_bounds<kWide>(w, in, mask, count * sizeof(S), at)) {
      for (uint32_t m = mask; m; m &= m - 1)
        for (uint32_t k = 0; k < count; ++k) {
          const int lane = std::countr_zero(m);
          const S x = S(from[k][lane]);
          std::memcpy(begin + at[lane] + k * sizeof(S), &x, sizeof(S));
        }
      return;
    }
  } else if (std::byte* all = side_by_side<kWide>(w, in, mask, count * sizeof(S))) {
    S* to = reinterpret_cast<S*>(all);
    for (uint32_t k = 0; k < count; ++k)
      for (uint32_t lane = 0; lane < 32; ++lane) to[lane * count + k] = S(from[k][lane]);
    return;
  }
  for (uint32_t m = mask; m; m &= m - 1) {
    const int lane = std::countr_zero(m);
    const uint64_t at = place<kWide>(w, in, lane);
    S values[4];
    for (uint32_t k = 0; k < count; ++k) values[k] = S(from[k][lane]);
    std::byte* to = kShared ? w.block->shared.write(w, lane, uint32_t(at), count * sizeof(S), values)
                            : outside(w, lane, at, count * sizeof(S), true);
    std::memcpy(to, values, count * sizeof(S));
  }
}

template <template <class, class, bool, bool> class Access, class S, bool kShared>
Instr::Run of_registers(int width, bool wide) {
  const auto pick = [&]<class R>(R) -> Instr::Run {
    return wide ? &Access<S, R, kShared, true>::run : &Access<S, R, kShared, false>::run;
  };
  if (width == 2) return pick(uint16_t{});
  if (width == 4) return pick(uint32_t{});
  return pick(uint64_t{});
}
template <class S, class R, bool kShared, bool kWide>
struct Load {
  static void run(Warp& w, const Instr& in, uint32_t mask) { load<S, R, kShared, kWide>(w, in, mask); }
};
template <class S, class R, bool kShared, bool kWide>
struct Store {
  static void run(Warp& w, const Instr& in, uint32_t mask) { store<S, R, kShared, kWide>(w, in, mask); }
};

template <template <class, class, bool, bool> class Access>
Instr::Run of_type(string_view t, int width, bool shared, bool wide) {
  const auto pick = [&]<class S>(S) {
    return shared ? of_registers<Access, S, true>(width, wide) : of_registers<Access, S, false>(width, wide);
  };
  if (t == "s8") return pick(int8_t{});
  if (t == "s16") return pick(int16_t{});
  if (t == "s32") return pick(int32_t{});
  switch (bytes_of(t)) {
    case 1:
      return pick(uint8_t{});
    case 2:
      return pick(uint16_t{});
    case 4:
      return pick(uint32_t{});
    case 8:
      return pick(uint64_t{});
  }
  return nullptr;
}

bool decode_access(Decoder& d, const Statement& s, Instr& in, bool loads) {
  const auto& o = s.operands;
  const auto address = d.address(o[loads ? 1 : 0]);
  const std::string_view t = s.type();
  int width = 0;
  for (const std::string& e : d.elements(o[loads ? 0 : 1])) {
    in.list.push_back(loads ? d.write(e) : d.read(e, t));
    width = d.is_register(e) ? d.width(e) : std::max(width, std::max(bytes_of(t), 2));
  }
  in.writes_list = loads, in.a = address.base, in.number = address.offset;
  in.run = loads ? of_type<Load>(t, width, s.has("shared") || s.has("shared::cta"), address.wide)
                 : of_type<Store>(t, width, s.has("shared") || s.has("shared::cta"), address.wide);
  return in.run != nullptr;
}

enum class Change { add, least, most, swap, compare, conjoin, join };

template <class T>
T changed(Change how, T old, T by, T wanted) {
  switch (how) {
    case Change::add:
      return old + by;
    case Change::least:
      return old < by ? old : by;
    case Change::most:
      return old > by ? old : by;
    case Change::swap:
      return by;
    case Change::compare:
      return old == by ? wanted : old;
    default:
      break;
  }
  if constexpr (std::is_integral_v<T>) return how == Change::conjoin ? T(old & by) : T(old | by);
  return old;
}

// list: the operand, and the new value of compare-and-swap; without d for red. The last entry is
// the operation.
template <class T, bool kShared>
void change(Warp& w, const Instr& in, uint32_t mask) {
  for (uint32_t m = mask; m; m &= m - 1) {
    const int lane = std::countr_zero(m);
    const bool wide = in.c != 0;
    const uint64_t at = wide ? place<true>(w, in, lane) : place<false>(w, in, lane);
    const Change how = Change(in.list[2]);
    const T by = w.at<T>(in.list[0])[lane], wanted = in.list[1] ? w.at<T>(in.list[1])[lane] : T{};
    T old;
    if (kShared) {
      std::byte* p =
          w.block->shared.write(w, lane, uint32_t(at), sizeof(T), nullptr, SharedMemory::Kind::atomic);
      std::memcpy(&old, p, sizeof(T));
      const T next = changed(how, old, by, wanted);
      std::memcpy(p, &next, sizeof(T));
    } else {
      std::atomic_ref<T> place(*reinterpret_cast<T*>(outside(w, lane, at, sizeof(T), true)));
      old = place.load();
      while (!place.compare_exchange_weak(old, changed(how, old, by, wanted))) {
      }
    }
    if (in.d) w.at<T>(in.d)[lane] = old;
  }
}

bool decode_change(Decoder& d, const Statement& s, Instr& in, bool returns) {
  const auto& o = s.operands;
  const string_view t = s.type();
  const std::pair<const char*, Change> kinds[] = {
      {"add", Change::add},     {"min", Change::least},   {"max", Change::most}, {"exch", Change::swap},
      {"cas", Change::compare}, {"and", Change::conjoin}, {"or", Change::join}};
  const std::pair<const char*, Change>* kind = nullptr;
  for (const auto& one : kinds)
    if (s.has(one.first)) kind = &one;
  if (!kind) return false;
  const auto address = d.address(o[returns]);
  if (returns) in.d = d.write(o[0]);
  in.a = address.base, in.number = address.offset, in.c = address.wide;
  in.list = {d.read(o[returns + 1], t),
             o.size() > size_t(returns + 2) ? d.read(o[size_t(returns) + 2], t) : 0, uint32_t(kind->second)};
  if (kind->second == Change::compare) in.list = {in.list[0], in.list[1], uint32_t(kind->second)};
  const bool shared = s.has("shared");
  const auto pick = [&]<class T>(T) -> Instr::Run { return shared ? &change<T, true> : &change<T, false>; };
  in.run = t == "u32" || t == "b32"   ? pick(uint32_t{})
           : t == "s32"               ? pick(int32_t{})
           : t == "u64" || t == "b64" ? pick(uint64_t{})
           : t == "s64"               ? pick(int64_t{})
           : t == "f32"               ? pick(float{})
           : t == "f64"               ? pick(double{})
                                      : nullptr;
  return in.run != nullptr;
}

// a: shared address, b: global address, c: bytes to read or 0; number: bytes.
void copy(Warp& w, const Instr& in, uint32_t mask) {
  for (uint32_t m = mask; m; m &= m - 1) {
    const int lane = std::countr_zero(m);
    const uint32_t to = w.at<uint32_t>(in.a)[lane], bytes = uint32_t(in.number);
    const uint64_t from = w.at<uint64_t>(in.b)[lane];
    const uint32_t some = in.c ? w.at<uint32_t>(in.c)[lane] : bytes;
    if (some > bytes)
      w.fail("copies " + std::to_string(some) + " of " + std::to_string(bytes) + " bytes", lane);
    if (from % bytes) w.fail("copies from an address that is not aligned", lane);
    if (some > 0 && !device_memory().holds(reinterpret_cast<const void*>(from), some))
      w.fail("copies " + device_memory().problem(reinterpret_cast<const void*>(from), some), lane);
    w.block->shared.write(w, lane, to, bytes, nullptr, SharedMemory::Kind::coming);
    w.copies.push_back(
        {lane, w.copy_groups[lane], to, reinterpret_cast<const std::byte*>(from), bytes, bytes - some});
  }
}
void commit_copies(Warp& w, const Instr&, uint32_t mask) {
  lanes(mask, [&](int lane) { ++w.copy_groups[lane]; });
}
// number: groups that may be incomplete; -1: uncommitted copies must also be complete.
void wait_for_copies(Warp& w, const Instr& in, uint32_t mask) {
  size_t kept = 0;
  for (const Copy& c : w.copies) {
    const uint32_t pending = w.copy_groups[c.lane] - c.group;  // 0: not committed
    const bool done = mask >> c.lane & 1 && (in.number < 0 || (pending > 0 && pending > in.number));
    if (!done) {
      w.copies[kept++] = c;
      continue;
    }
    std::byte* to = w.block->shared.arrive(w, c.lane, c.to, c.bytes);
    std::memcpy(to, c.from, c.bytes - c.filled);
    std::memset(to + c.bytes - c.filled, 0, c.filled);
  }
  w.copies.resize(kept);
}

bool decode_copy(Decoder& d, const Statement& s, Instr& in) {
  const auto& o = s.operands;
  if (s.op == "cp.async.commit_group") return in.run = &commit_copies, true;
  if (s.op == "cp.async.wait_group") return in.run = &wait_for_copies, in.number = d.number(o[0]), true;
  if (s.op == "cp.async.wait_all") return in.run = &wait_for_copies, in.number = -1, true;
  if (!s.op.starts_with("cp.async.c") || o.size() < 3) return false;
  const auto to = d.address(o[0]), from = d.address(o[1]);
  in.a = to.base, in.b = from.base, in.number = d.number(o[2]);
  if (o.size() > 3) in.c = d.read(o[3], "u32");
  in.run = &copy;
  return !to.wide && from.wide && to.offset == 0 && from.offset == 0;
}

void shared_to_general(Warp& w, const Instr& in, uint32_t mask) {
  lanes(mask, [&](int i) {
    w.at<uint64_t>(in.d)[i] =
        reinterpret_cast<uint64_t>(w.block->shared.data()) + w.at<uint64_t>(in.a)[i] - SharedMemory::kBegin;
  });
}
void general_to_shared(Warp& w, const Instr& in, uint32_t mask) {
  lanes(mask, [&](int i) {
    w.at<uint64_t>(in.d)[i] =
        w.at<uint64_t>(in.a)[i] - reinterpret_cast<uint64_t>(w.block->shared.data()) + SharedMemory::kBegin;
  });
}

}  // namespace

bool decode_memory(Decoder& d, const Statement& s, Instr& in) {
  const string_view name = s.parts[0];
  if (name == "ld" || name == "ldu") return decode_access(d, s, in, true);
  if (name == "st") return decode_access(d, s, in, false);
  if (name == "atom" || name == "red") return decode_change(d, s, in, name == "atom");
  if (name == "cp") return decode_copy(d, s, in);
  if (name == "cvta" && s.type() == "u64") {
    in.run = s.has("to") ? &general_to_shared : &shared_to_general;
    in.d = d.write(s.operands[0]), in.a = d.read(s.operands[1], "u64");
    return true;
  }
  return false;
}

}  // namespace interpreter
