// A kernel of the interpreter: decoded once from PTX, then executed by warps (warp.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace interpreter {

struct Warp;

// Defect of a kernel or of its use; the text contains the place.
struct Defect : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// An instruction. Registers are byte offsets into a warp's register file, with 32 lanes of their
// width each; a predicate is one word with a bit per lane. Numbers in the text are registers that
// are never written.
struct Instr {
  using Run = void (*)(Warp&, const Instr&, uint32_t mask);
  static constexpr uint32_t kAlways = ~0u;

  Run run = nullptr;
  uint32_t guard = kAlways;
  bool unless = false;       // the guard is negated
  bool writes_list = false;  // `list` is written, not read
  bool product = false;      // of a warpgroup: checks its registers itself
  uint32_t d = 0, a = 0, b = 0, c = 0;
  int64_t number = 0;          // an offset, a jump target, a count
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
  std::map<std::string, uint32_t> special;    // registers such as %tid.x in the text
  std::map<uint32_t, uint32_t> param_places;  // registers with the addresses of these parameter bytes
  uint32_t local_at = 0;                      // register with the address of a thread's memory; 0: unused
  bool has_products = false;                  // of warpgroups
  int max_threads = 1024;

  // Returns the source line, if the text has it, and the instruction.
  std::string where(int pc) const;
  std::vector<std::string> text;    // of each instruction
  std::vector<std::string> source;  // "file:line, " of each instruction; empty if unknown
};

}  // namespace interpreter
