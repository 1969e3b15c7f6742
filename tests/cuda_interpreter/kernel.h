// A kernel as the interpreter runs it: decoded once from PTX, then executed by warps (warp.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace interpreter {

struct Warp;

// What is wrong with a kernel, or with how it is used; the text says where.
struct Defect : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// An instruction. Registers are byte offsets into a warp's file, where each holds 32 lanes of its width; a
// predicate is one word, a bit a lane. Numbers in the text are registers that nobody writes.
struct Instr {
  using Run = void (*)(Warp&, const Instr&, uint32_t mask);
  static constexpr uint32_t kAlways = ~0u;

  Run run = nullptr;
  uint32_t guard = kAlways;
  bool unless = false;       // the guard is negated
  bool writes_list = false;  // `list` is written, not read
  bool product = false;      // of a warpgroup: checks its registers itself
  uint32_t d = 0, a = 0, b = 0, c = 0;
  int64_t number = 0;          // an offset, a place to jump to, a count
  std::vector<uint32_t> list;  // registers of vectors and matrices
  int line = 0;                // of the PTX
};

struct Kernel {
  struct Param {
    uint32_t at, bytes;
  };
  struct Constant {
    uint32_t at, bytes;
    uint64_t bits;
  };

  std::string name;
  std::vector<Instr> code;
  std::vector<Param> params;
  uint32_t param_bytes = 0, shared_bytes = 0, local_bytes = 0, file_bytes = 0;
  std::vector<Constant> constants;
  std::map<std::string, uint32_t> special;    // registers as %tid.x that the text names
  std::map<uint32_t, uint32_t> param_places;  // registers with the addresses of these bytes of the parameters
  uint32_t local_at = 0;                      // a register with the address of a thread's memory; 0: not used
  bool has_products = false;                  // of warpgroups
  int max_threads = 1024;

  // The line of the source, where the text has it, and the instruction.
  std::string where(int pc) const;
  std::vector<std::string> text;    // of each instruction
  std::vector<std::string> source;  // "file:line, " of it; empty where that is not known
};

}  // namespace interpreter
