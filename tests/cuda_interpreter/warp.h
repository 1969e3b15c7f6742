// Warps and blocks. Lanes of a warp form groups at the same instruction; the group with the smallest place
// runs, and groups that meet are joined. A warp runs until its next barrier; the next warp is
// random.
#pragma once
#include <bit>
#include <random>

#include "tests/cuda_interpreter/kernel.h"
#include "tests/cuda_interpreter/shared_memory.h"

namespace interpreter {

struct Dim {
  uint32_t x = 1, y = 1, z = 1;
  uint64_t count() const { return uint64_t(x) * y * z; }
};

// A kernel with its arguments, as launched on a stream.
struct Launch {
  const Kernel* kernel = nullptr;
  Dim grid, block;
  uint32_t dynamic_shared = 0;
  std::vector<std::byte> params;
};

struct Block;

// A started copy from global to shared memory; it executes when its lane waits for its group.
struct Copy {
  int lane;
  uint32_t group;
  uint32_t to;
  const std::byte* from;
  uint32_t bytes, filled;  // the rest is zeros
};

// A started product of a warpgroup; it executes when the warp waits for its group.
struct Product {
  const Instr* in;
  uint32_t group;
  uint32_t begun;  // the clock
  uint64_t a, b;   // descriptors of shared memory
  bool add;
  std::vector<uint32_t> held;  // a in registers, 4 x 32 lanes
};

struct Group {
  int pc;
  uint32_t lanes;
  bool waits;  // at a collective, for other lanes
};

struct Warp {
  enum class State : uint8_t { ready, at_barrier, done };

  Block* block = nullptr;
  int index = 0, pc = 0;
  int meet = 0;  // next place of another group
  uint32_t active = 0, alive = 0;
  State state = State::ready;
  std::byte* file = nullptr;
  std::vector<Group> others;
  // The barrier of a waiting warp: number, expected threads, and contribution.
  int barrier = 0;
  uint32_t barrier_threads = 0;
  const Instr* reduction = nullptr;
  std::vector<Copy> copies;
  uint32_t copy_groups[32] = {};
  std::vector<Product> products;
  uint32_t product_groups = 0;
  std::vector<uint8_t> held;        // by register: 1 accumulates in flight, 2 is read in flight
  std::vector<uint32_t> written;    // by register: the step of the last write
  uint32_t steps = 0, fenced = 0;   // the step of the last fence of registers
  std::vector<uint32_t> published;  // clocks of the fences of shared memory

  template <class T>
  T* at(uint32_t reg) {
    return reinterpret_cast<T*>(file + reg);
  }
  int thread(int lane) const { return index * 32 + lane; }
  void run();
  void regroup();
  // Keeps the active lanes before this instruction until other lanes arrive.
  void wait_for_lanes();
  // Returns true if all lanes of `members` that have not ended are here; false: try again later.
  bool together(uint32_t members, uint32_t here);
  void leave(uint32_t lanes);
  [[noreturn]] void fail(const std::string& what, int lane = -1) const;

 private:
  template <bool kTracked>
  void go();
  void track(const Instr& in);
};

struct Block {
  const Launch* launch = nullptr;
  Dim index;
  SharedMemory shared;
  std::vector<Warp> warps;
  std::vector<std::byte> params, local;
  uint64_t jumps = 0;  // backwards

  void prepare(const Launch& launch);
  void run(Dim at, std::mt19937_64& random);
  void count_jump(const Warp& w);

 private:
  bool release();
  void stuck() const;
  std::vector<std::byte> files_;
  uint32_t place_[3] = {};  // registers with the block's coordinates; 0: unused
};

// Runs all blocks one after the other in a random order; throws Defect.
void execute(const Launch& launch, std::mt19937_64& random);

// f(lane) for the lanes of the mask; a full mask uses vector instructions if the loop allows.
template <class F>
inline void lanes(uint32_t mask, F f) {
  if (mask == ~0u) {
#pragma GCC ivdep
    for (int i = 0; i < 32; ++i) f(i);
  } else {
    for (uint32_t m = mask; m; m &= m - 1) f(std::countr_zero(m));
  }
}

}  // namespace interpreter
